"""What every part of the agent uses to wait, stop and report."""
