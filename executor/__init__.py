"""The user's side: what to run and where; plan, launch, watch, cancel, report."""
