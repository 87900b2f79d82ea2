"""The parts between `bai` and the agent on an instance: user data, and the scripts that start the agent and run after
its end."""
