"""The job's record: an interface, and one module for each place that it can lie in."""
