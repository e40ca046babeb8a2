"""The host around the compiled program: builds it, runs its rounds, runs many programs, and reports to the user."""
