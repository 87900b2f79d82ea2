"""Reads and checks the events that the service receives, requests as well as EC2's events, and writes the
messages that it sends. The modules do no I/O."""
