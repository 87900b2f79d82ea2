"""The agent's bundle, which an instance downloads and runs."""
