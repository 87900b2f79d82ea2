"""A miniature EC2 on one machine, for tests: what users submit is what boots, runs and powers off here."""
