"""The live runtime: rank 0's loop, the workers' loop, communicators and launching."""
