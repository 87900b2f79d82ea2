"""Generations: stretches of a job between two restarts, each with fixed members that start and end together."""
