"""Reads the records of a job: validates records, follows records while they grow, and describes records with
one vocabulary."""
