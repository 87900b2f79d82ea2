"""The phases of a run, from `prepare` to `end`; `run.py` lists the phases in order."""
