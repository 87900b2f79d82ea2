"""Turns lines into numbers. Compiles patterns, searches lines and parses numbers, without side effects."""
