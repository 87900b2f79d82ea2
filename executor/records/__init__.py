"""What the record of a job says: checked when it is read, followed while it grows, told in one set of words."""
