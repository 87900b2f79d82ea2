"""Turns the user's descriptor into the job that runs."""
