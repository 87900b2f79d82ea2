"""Metrics from the benchmark's result files. The files are read once, after the benchmark's end."""
