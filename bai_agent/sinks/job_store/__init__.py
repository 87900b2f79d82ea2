"""The job store as a sink, to which log, metrics and events of this node are uploaded during the run."""
