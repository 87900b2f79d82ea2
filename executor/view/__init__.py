"""Live views of a job that runs."""
