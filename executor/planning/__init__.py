"""From the user's descriptor to the job that runs."""
