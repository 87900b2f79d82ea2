"""Conclusions from a job's numbers. Pure: it reads no store, and imports scipy only inside the functions that need it."""
