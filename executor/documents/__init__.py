"""Documents about jobs: listings, summaries, comparisons."""
