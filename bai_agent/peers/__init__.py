"""Signs of life of the other nodes, and the store's absence."""
