"""The records of a job: checked when they are read, followed while they grow, described with one
vocabulary."""
