"""Reads the records of a job: validates them, follows them while they grow, and describes them with one
vocabulary."""
