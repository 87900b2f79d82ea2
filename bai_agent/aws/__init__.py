"""Uses AWS without boto3: credentials, the metadata service, secrets, S3."""
