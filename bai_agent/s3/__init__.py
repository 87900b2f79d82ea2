"""S3, for whoever needs it: a client for one bucket, whose credentials it uses, and what its errors mean to a person."""
