"""Slurm: batch scripts, submission, questions to it, and what an allocation says of itself."""
