"""Nothing of ours but a folder for PYTHONPATH; see sitecustomize.py."""
