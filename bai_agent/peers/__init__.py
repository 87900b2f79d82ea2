"""Watches the other nodes' signs of life, and handles an unreachable job store."""
