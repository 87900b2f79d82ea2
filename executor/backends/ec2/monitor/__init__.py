"""Monitors jobs on EC2, and ends machines that nobody needs."""
