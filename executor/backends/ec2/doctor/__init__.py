"""The command `bai doctor`, which checks everything that a job on EC2 needs."""
