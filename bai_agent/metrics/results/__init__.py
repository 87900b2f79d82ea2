"""Metrics from the benchmark's result files, which are read once, after its end."""
