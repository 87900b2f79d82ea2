"""The clock, the reasons to stop and the event log that every part of the agent uses."""
