"""Declares the tables of descriptors: fields, types, checks, and the syntax of values such as durations and JSON
paths."""
