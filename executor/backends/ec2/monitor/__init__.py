"""Monitors jobs on EC2, and ends machines that are no longer needed."""
