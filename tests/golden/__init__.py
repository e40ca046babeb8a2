"""Arrays made with PyTorch, and the script that makes them."""
