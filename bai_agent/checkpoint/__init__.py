"""Captures the files of the benchmark's checkpoint folder at one moment, uploads these files, and restores
the files on this machine or another."""
