"""The tables of the paper: what each row runs, and the paper's numbers beside it."""
