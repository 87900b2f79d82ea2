"""Takes a job's parameters and metrics out to the systems in which people compare experiments."""
