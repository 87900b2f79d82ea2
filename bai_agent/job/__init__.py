"""The types that `bai` and the agent share: the job descriptor, the job's record in a store, events,
outcomes, durations, errors."""
