"""The sink that sends metrics to CloudWatch as log events in its embedded metric format."""
