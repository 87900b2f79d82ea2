"""The watcher of an account: a Lambda function that looks at all jobs of a bucket, and the archive that it is made of."""
