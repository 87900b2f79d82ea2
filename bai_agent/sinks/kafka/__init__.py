"""Kafka as a sink: a message for each metric record."""
