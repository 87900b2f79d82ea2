"""Follows the benchmark's output and writes the numbers in it to metrics.jsonl."""
