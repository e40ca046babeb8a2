"""What stays on disk: run directories, checkpoints, model files, event files."""
