"""Launches instances for a descriptor: looks values up, makes the request, and sends it so that only one
launch succeeds."""
