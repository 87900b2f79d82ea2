"""Kafka as a sink. Each metric record is sent as one message."""
