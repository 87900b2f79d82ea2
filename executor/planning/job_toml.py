"""Writes job descriptors as TOML."""

from __future__ import annotations

import os

import tomli_w

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor_file import job_table
from executor.errors import UsageError

_HEADER = """\
# A job descriptor: what one job's agent needs, with nothing left to look up.
# `bai-agent run THIS-FILE` runs it. Keys that have their default value are left out.

"""


def job_toml(job: Job) -> str:
    """Return `job` as the text of a job descriptor; `parse_job` reads the same job back from its UTF-8 bytes.

    Raises UsageError where something in it is not text: TOML cannot hold a path whose bytes are not UTF-8.
    """
    table = job_table(job)
    plain = tomli_w.dumps(table)
    for line in plain.splitlines():
        try:
            line.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(line).decode(errors="backslashreplace")
            raise UsageError(
                f"the job cannot be written down, as a name in it is not UTF-8: {shown.strip()}; rename it"
            ) from None
    # Scripts are pleasant to read in several lines; but there a TOML reader makes \n of \r\n.
    return _HEADER + (plain if "\\r" in plain else tomli_w.dumps(table, multiline_strings=True))
