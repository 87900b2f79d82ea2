"""Patterns tried on a text before a job runs: `metrics-test`."""
