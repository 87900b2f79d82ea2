"""Checkpoints: captures the files of the benchmark's folder at one moment, uploads them, and restores them
elsewhere."""
