"""Generations of a job: the time between two restarts, with fixed member nodes that start and end
together."""
