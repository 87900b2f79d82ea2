"""`bai doctor`: what a job on EC2 needs, and what of it is missing."""
