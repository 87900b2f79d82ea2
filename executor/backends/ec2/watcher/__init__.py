"""The watcher of an account: a Lambda function that checks all jobs of a bucket, and the archive of the
function's code."""
