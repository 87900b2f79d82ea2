"""Captures the files of the benchmark's checkpoint folder at one moment, uploads them, and restores them on
this or another machine."""
