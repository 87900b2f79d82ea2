"""`bai setup`: the resources that jobs on EC2 need in an account, as CloudFormation stacks."""
