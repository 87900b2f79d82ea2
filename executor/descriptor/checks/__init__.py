"""Checks of a benchmark descriptor beyond the types of its keys."""
