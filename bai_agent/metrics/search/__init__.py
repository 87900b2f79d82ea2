"""Turns lines into numbers: patterns, their search, and reading of numbers. Pure."""
