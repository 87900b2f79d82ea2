"""Writes job descriptors as TOML."""

from __future__ import annotations

import tomli_w

from bai_agent.job import Job
from bai_agent.job_file import job_table

_HEADER = """\
# A job descriptor: what one job's agent needs, with nothing left to look up.
# `bai-agent run THIS-FILE` runs it. Keys that have their default value are left out.

"""


def job_toml(job: Job) -> str:
    """Return `job` as the text of a job descriptor; `parse_job` reads the same job back from its UTF-8 bytes."""
    table = job_table(job)
    plain = tomli_w.dumps(table)
    # Scripts are pleasant to read in several lines; but there a TOML reader makes \n of \r\n.
    return _HEADER + (plain if "\\r" in plain else tomli_w.dumps(table, multiline_strings=True))
