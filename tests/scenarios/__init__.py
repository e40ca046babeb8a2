"""What no single module promises: whole runs, bad input, and what is written about them."""
