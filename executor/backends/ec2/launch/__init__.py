"""Launches the instances of a job: looks up the values that the request needs, builds the request, and sends
it so that a job is launched only once."""
