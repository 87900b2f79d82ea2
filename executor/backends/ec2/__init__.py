"""Runs jobs on EC2 instances: looks up, launches, monitors and ends them."""
