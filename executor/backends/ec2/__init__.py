"""Runs jobs on EC2 instances: launches, monitors and terminates the instances."""
