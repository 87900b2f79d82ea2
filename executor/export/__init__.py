"""Exports a job's parameters and metrics to systems in which people compare experiments."""
