"""The job store as a sink: log, metrics and events of this node are uploaded during the run."""
