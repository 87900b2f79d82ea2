"""Documents about jobs, such as listings, summaries and comparisons."""
