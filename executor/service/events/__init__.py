"""Reads and checks the events that the service receives: requests, commands and EC2's events. Writes the
messages that the service sends. The modules do no I/O."""
