"""Uses AWS services without boto3: finds credentials, reads the metadata service and secrets, and accesses
S3."""
