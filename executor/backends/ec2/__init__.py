"""Runs jobs on EC2 instances: what is looked up, what is launched, and what becomes of it."""
