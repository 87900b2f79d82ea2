"""The small process that is the benchmark's parent; standard library only."""
