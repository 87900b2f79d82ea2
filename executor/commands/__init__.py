"""The commands of `bai`, one module for each topic."""
