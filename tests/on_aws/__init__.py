"""What only a real AWS account can show: `scripts/prove-on-aws` runs the steps of `steps.py` there, and takes all away again."""
