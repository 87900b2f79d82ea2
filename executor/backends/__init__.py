"""Places where jobs run: this machine, EC2."""
