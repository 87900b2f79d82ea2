"""Several nodes as one job: they join, wait for each other before each run, and log in to each other."""
