"""The parts between `bai` and the agent on an instance: user data, and the scripts that boot and outlive the agent."""
