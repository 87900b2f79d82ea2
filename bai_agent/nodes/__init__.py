"""Lets several nodes run one job together. The nodes join the job, wait for each other before each run, and
log in to each other by SSH."""
