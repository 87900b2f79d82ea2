"""Brings data and scripts to the machine."""
