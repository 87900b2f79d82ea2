"""The context of a run, the reasons to stop a run, its extractor process and its heartbeat."""
