"""Exports a job's parameters and metrics to experiment trackers."""
