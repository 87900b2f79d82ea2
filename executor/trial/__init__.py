"""Tries the patterns of metrics on a text before a job runs, for `metrics-test`."""
