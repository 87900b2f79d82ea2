"""Turns lines into numbers. Compiles patterns, searches lines and parses numbers. Pure."""
