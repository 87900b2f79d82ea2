"""The context of a run, its reasons to stop, its extractor and its heartbeat."""
