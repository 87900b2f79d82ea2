"""Clocks, stop requests and event logs that every part of the agent uses."""
