"""The job store as a sink: log, metrics and events of this node go there while the run goes on."""
