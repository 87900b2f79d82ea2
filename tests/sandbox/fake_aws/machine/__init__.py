"""Instances as machines that really boot: disks, a network, metadata, a console."""
