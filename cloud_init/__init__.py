"""What stands between `bai` and `bai-agent` on an instance: user data and the guardian script."""
