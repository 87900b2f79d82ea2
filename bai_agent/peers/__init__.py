"""Watches the other nodes' heartbeats, and handles an unreachable job store."""
