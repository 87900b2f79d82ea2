"""Live views of a running job."""
