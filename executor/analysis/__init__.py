"""Draws statistical conclusions from the numbers of jobs. This package reads no store, and imports scipy only
inside the functions that need it."""
