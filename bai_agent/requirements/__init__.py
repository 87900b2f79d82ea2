"""The benchmark's Python environment: requirements installed into a cached virtual environment."""
