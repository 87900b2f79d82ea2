"""The types that both programs share: the job descriptor, the job's record in a store, events, outcomes,
durations, errors."""
