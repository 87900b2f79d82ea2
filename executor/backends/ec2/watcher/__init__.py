"""The watcher of an AWS account: a Lambda function that checks all jobs of a bucket. Also builds the archive
with the function's code."""
