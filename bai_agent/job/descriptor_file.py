"""The job descriptor as a file. `bai` writes the file into user data or into the job's folder. Users can also
write a job descriptor by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import VERSION, Job
from bai_agent.job.descriptor.limit_tables import ELASTIC_SILENCE
from bai_agent.job.descriptor.metric_tables import check_patterns, check_results
from bai_agent.job.schema.durations import format_duration
from bai_agent.job.schema.tables import read_table, write_table
from bai_agent.job.toml import read_toml_text

DESCRIPTOR_LIMIT = 16 * 2**20
"""Size limit of a job descriptor (bytes)."""


def read_job(path: Path, *, checked: bool = False) -> Job:
    """Return the job descriptor in the file `path`. Raises DescriptorError.

    `checked`: whether the same content was validated before. If true, patterns are not compiled again, because
    compiling is the slowest part of validation.
    """
    try:
        with path.open("rb") as file:
            content = file.read(DESCRIPTOR_LIMIT + 1)
    except OSError as error:
        raise DescriptorError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > DESCRIPTOR_LIMIT:
        raise DescriptorError(f"{path}: larger than 16 MiB; that is not a job descriptor")
    return parse_job(content, where=str(path), checked=checked)


def parse_job(content: bytes, *, where: str, checked: bool = False) -> Job:
    """Return the job descriptor in `content` (TOML, UTF-8); see `read_job`. Raises DescriptorError."""
    try:
        table = read_toml_text(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DescriptorError(f"{where}: not UTF-8 text (byte {error.start})") from error
    except ValueError as error:
        raise DescriptorError(f"{where}: not valid TOML: {error}") from error
    version = table.get("version")
    if type(version) is not int:
        raise DescriptorError(f'{where}: lacks "version = {VERSION}"; is it a job descriptor?')
    if version != VERSION:
        raise DescriptorError(
            f"{where}: version {version} of the job descriptor; this agent reads version {VERSION}. "
            "Use the agent of the `bai` that wrote the job descriptor."
        )
    job = read_table(Job, table, where=f"{where}:")
    if job.is_elastic and "peer_silence" not in job.limits.written:
        job = replace(job, limits=replace(job.limits, peer_silence=ELASTIC_SILENCE))
    if not checked:
        try:
            check_patterns(job.metrics, labels=job.job.labels)
            check_results(job.results, labels=job.job.labels)
        except ValueError as error:
            raise DescriptorError(f"{where}: {error}") from error
    return job


def job_table(job: Job) -> dict[str, Any]:
    """Return `job` as plain TOML values, without values that equal their default. `parse_job` reads the TOML text of
    these values."""
    table = {"version": job.version, **write_table(job)}
    if job.is_elastic:
        # The default of `peer_silence` depends on another table, so this key is never left out.
        limits = table.setdefault("limits", {})
        limits["peer_silence"] = format_duration(job.limits.peer_silence)
    return table


def without_credentials(job: Job) -> Job:
    """Return `job` without secrets. Passwords and queries are removed from the addresses of sources, because
    a query may contain a key."""
    # Imported here, because an extractor does not need the module at its start.
    from bai_agent.job.schema.source_schemes import shown_address

    return replace(job, sources=tuple(replace(each, src=shown_address(each.src)) for each in job.sources))
