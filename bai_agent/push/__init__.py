"""Follows metrics.jsonl and sends it on."""
