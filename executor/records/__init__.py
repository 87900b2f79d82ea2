"""Reads the records of a job: validates them, follows them while they grow, and describes them to the user in
the same words everywhere."""
