"""What a client does on its own: nothing here knows of subsets or of the server."""
