"""Checkpoints: holds the files of the benchmark's folder as they are at one moment, uploads them, and restores them elsewhere."""
