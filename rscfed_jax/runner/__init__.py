"""The host around the compiled program: builds it, drives its rounds, runs many of them, and tells the user."""
