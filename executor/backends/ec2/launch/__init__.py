"""From a descriptor to instances: look-ups, the request, and its only launch."""
