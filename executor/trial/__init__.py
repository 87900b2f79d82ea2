"""Tries patterns on a text before a job runs, for `metrics-test`."""
