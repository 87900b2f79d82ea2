"""From a descriptor to instances: what is looked up, the request, and its one launch."""
