"""What a node runs, one module for each way in which nodes work together."""
