"""What is kept on disk: run directory, journal, checkpoints, job files."""
