"""What the user wrote: the benchmark descriptor, and every mistake in it."""
