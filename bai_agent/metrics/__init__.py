"""Follows the benchmark's output and writes the extracted numbers to metrics.jsonl."""
