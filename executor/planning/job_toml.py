"""Writes job descriptors as TOML."""

from __future__ import annotations

import os

import tomli_w

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor_file import DESCRIPTOR_LIMIT, job_table, parse_job, without_credentials
from bai_agent.job.record import JobRecord
from bai_agent.job.redaction import Redactor
from executor.errors import UsageError

_HEADER = """\
# A job descriptor: what one job's agent needs, with nothing left to look up.
# `bai-agent run THIS-FILE` runs it. Keys that have their default value are left out.

"""


def job_toml(job: Job) -> str:
    """Return `job` as the text of a job descriptor. `parse_job` reads the same job back from its UTF-8 bytes.

    Raises UsageError if a path in the job is not UTF-8, because TOML cannot contain such a path.
    """
    table = job_table(job)
    plain = tomli_w.dumps(table)
    for line in plain.splitlines():
        try:
            line.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(line).decode(errors="backslashreplace")
            raise UsageError(
                f"the job cannot be written, because a name in it is not UTF-8: {shown.strip()}; rename it"
            ) from None
    # Scripts are easier to read in several lines, but a TOML reader turns \r\n into \n in a string of several
    # lines.
    return _HEADER + (plain if "\\r" in plain else tomli_w.dumps(table, multiline_strings=True))


def shown_job_toml(record: JobRecord) -> str:
    """Return the text of a job's `job.toml` without secrets. The text is changed only if an address in the
    text contains a secret. Raises StoreError.
    """
    key = record.key("job.toml")
    content = record.store.get(key, limit=DESCRIPTOR_LIMIT)
    try:
        job = parse_job(content, where=f"{record.store.url}/{key}", checked=True)
    except DescriptorError:  # Another version of `bai` wrote the descriptor, or the descriptor is damaged.
        return Redactor().redact(content.decode(errors="replace"))
    shown = without_credentials(job)
    return content.decode() if shown == job else job_toml(shown)
