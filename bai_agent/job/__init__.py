"""What both programs agree on: the job descriptor, the job's record in a store, events, outcomes, durations, errors."""
