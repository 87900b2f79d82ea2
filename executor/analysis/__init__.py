"""Draws statistical conclusions from the numbers of jobs. The package `analysis` reads no store, and imports
scipy only inside the functions that need scipy."""
