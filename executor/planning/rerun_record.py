"""Saves the request of a job as `request.json` in the job's record, so that the job can be run again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bai_agent.decode import checked
from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Text, Texts
from bai_agent.job.run_directory import RunDir
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass
from executor.errors import UsageError
from executor.planning.request import JobRequest, set_values
from executor.planning.scripts_folder import ScriptsOrigin, scripts_digest

if TYPE_CHECKING:
    from executor.descriptor import Descriptor

REQUEST = "request.json"


def keep_request(
    record: JobRecord,
    job_request: JobRequest,
    scripts: ScriptsOrigin | None,
    *,
    leave_out: Sequence[Path] = (),
) -> None:
    """Record the request. A request with several files is not recorded. A request of the service is not
    recorded either, because the service's messages contain the request.

    scripts: origin of the scripts, which may be an archive. Raises StoreError, ScriptsError.
    """
    if job_request.service is not None or job_request.other_arms is not None:
        return
    digest = scripts_digest(scripts, leave_out) if scripts is not None else None
    table = {"version": 1, **request_table(job_request), "scripts_sha256": digest}
    try:
        line = json.dumps(table, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # A path in the request is not UTF-8, so the request is not saved. The job runs, but `--like` cannot
        # repeat it.
        return
    record.store.put(record.key(REQUEST), line)


def request_table(job_request: JobRequest) -> dict[str, Any]:
    """Return a request as JSON values: the fields of `KeptRequest` without the checksum of its scripts."""
    return {
        "file": str(job_request.file.absolute()),
        "descriptor": job_request.read_content().decode(errors="replace"),
        "arguments": list(job_request.arguments),
        "set": set_values(job_request),
        "on": job_request.on,
        "script": _absolute(job_request.script),
        "data_root": _absolute(job_request.data_root),
    }


@dataclass(frozen=True, kw_only=True)
class KeptRequest:
    """The content of `request.json`."""

    file: Text
    descriptor: Text
    arguments: Texts
    set: dict[Text, Text]
    on: Text | None
    script: Text | None
    data_root: Text | None
    scripts_sha256: Text | None = None

    def as_request(self, values: Mapping[str, str]) -> JobRequest:
        """Return the request with `values` as its values of `--set`, and with the original scripts."""
        from executor.descriptor.overrides import read_overrides

        return JobRequest(
            file=Path(self.file),
            content=self.descriptor.encode(),
            on=self.on,
            arguments=tuple(self.arguments),
            script=None if self.script is None else Path(self.script),
            data_root=None if self.data_root is None else Path(self.data_root),
            overrides=read_overrides(f"{key}={text}" for key, text in values.items()),
        )


def kept_request(record: JobRecord) -> KeptRequest | None:
    """Return the request that made a job; None if the request is not recorded. Raises StoreError,
    RecordError."""
    key = record.key(REQUEST)
    found = record.read_object(key)
    return None if found is None else checked(KeptRequest, found, where=f"{record.store.url}/{key}")


def kept_descriptor(record: JobRecord) -> Descriptor:
    """Return the benchmark descriptor of a job, without secret values. Raises UsageError, StoreError,
    RecordError."""
    from executor.descriptor import load_table, render_findings
    from executor.descriptor.overrides import REDACTED, read_overrides
    from executor.descriptor.toml_file import parse_toml

    request = kept_request(record)
    if request is None:
        raise UsageError(f"the record of {record.job_id} does not contain the request that started the job")
    file = f"{record.store.url}/{record.key(REQUEST)}"
    table, findings = parse_toml(request.descriptor.encode(), file=file)
    descriptor = None
    if table is not None:
        known = (f"{key}={text}" for key, text in request.set.items() if text != REDACTED)
        descriptor, findings = load_table(table, file=file, folder=None, overrides=read_overrides(known))
    if descriptor is None:
        raise UsageError(render_findings(findings).rstrip())
    return descriptor


def kept_scripts(record: JobRecord, *, nodes: int = 1, arm: str | None = None) -> Path:
    """Return the path of the copy of a job's scripts. The job store must be a folder.

    In a job of one node, the benchmark runs directly in the job's copy of the scripts. In a job of several
    nodes, each node copies the scripts again, so that new files of one node do not appear on other nodes.
    arm: the arm that owns these scripts, if arms have their own scripts.
    """
    assert isinstance(record.store, DirectoryStore)
    first = RunDir(record.store.folder / record.node().place, arm)
    return first.scripts if nodes == 1 else RunDir(first.path.parents[1], arm).scripts


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
