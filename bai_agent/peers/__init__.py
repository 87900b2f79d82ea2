"""Signs of life of the other nodes, and an unreachable job store."""
