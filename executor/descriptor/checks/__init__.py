"""Checks of a benchmark descriptor in addition to those of the types of its keys."""
