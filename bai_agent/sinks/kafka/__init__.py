"""Kafka as a sink, with one message for each metric record."""
