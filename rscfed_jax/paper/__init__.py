"""Published tables: what each row runs, and the published numbers beside it."""
