"""Launches instances for a descriptor: looks values up, makes the request, and sends the request so that only
one launch succeeds."""
