"""Starts the benchmark, adopts a running benchmark after a restart of the agent, and ends all of the
benchmark's processes."""
