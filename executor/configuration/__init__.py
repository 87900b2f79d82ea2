"""The configuration files of `bai` and of its service."""
