"""Statistical conclusions from a job's numbers. This package reads no store, and imports scipy only inside
the functions that need it."""
