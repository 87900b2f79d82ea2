"""Folder that bai adds to the benchmark's PYTHONPATH, so that Python runs its sitecustomize.py."""
