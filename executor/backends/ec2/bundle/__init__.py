"""The agent's bundle: what an instance downloads and runs."""
