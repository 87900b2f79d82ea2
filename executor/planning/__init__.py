"""From what a user wrote to the job that runs."""
