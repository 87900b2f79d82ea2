"""`bai doctor`: checks everything that a job on EC2 needs."""
