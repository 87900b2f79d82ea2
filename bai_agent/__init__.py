"""The instance's side: pull, run, measure, report, end."""

__version__ = "0.1.0"
