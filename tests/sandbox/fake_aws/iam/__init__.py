"""Who calls, and what a policy allows."""
