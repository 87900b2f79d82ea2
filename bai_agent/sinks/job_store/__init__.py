"""The job store as a sink. The log, the metrics and the events of this node are uploaded to the store during
the run."""
