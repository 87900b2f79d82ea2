"""Starts the benchmark, adopts it after a restart, and ends all of its processes."""
