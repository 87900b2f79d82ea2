"""Installs the benchmark's Python requirements into a virtual environment, which is cached for later jobs."""
