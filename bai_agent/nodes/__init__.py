"""Lets several nodes run one job. The nodes join, wait for each other before each run, and log in to each
other."""
