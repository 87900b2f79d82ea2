"""The command `bai setup`, which creates the resources that jobs on EC2 need in an AWS account, as
CloudFormation stacks."""
