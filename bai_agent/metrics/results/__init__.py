"""Metrics from files that the benchmark writes: read once, after its end."""
