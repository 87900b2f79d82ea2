"""Works with files, folders and file descriptors, for `bai` and for the agent."""
