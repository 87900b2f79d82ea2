"""The phases of a run, from `prepare` to `end`; `run.py` is the table of contents."""
