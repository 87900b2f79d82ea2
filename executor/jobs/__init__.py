"""Jobs in a store: found, listed, followed, fetched, pruned."""
