"""`bai setup`: what jobs on EC2 need in an account, as CloudFormation stacks."""
