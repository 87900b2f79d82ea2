"""A request like the one that a job was made of: `--like JOB`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from bai_agent.job.record import JobRecord
from bai_agent.job.record_types import Text, Texts
from bai_agent.job.store.directory import DirectoryStore
from executor.descriptor.overrides import REDACTED, read_overrides
from executor.errors import UsageError
from executor.planning.repetition import REQUEST, kept_scripts, scripts_digest
from executor.planning.request import JobRequest, read_request, scripts_of_request
from executor.planning.scripts_folder import ScriptsError, ScriptsOrigin
from executor.records.reading import validated


class _Request(TypedDict):
    file: Text
    descriptor: Text
    arguments: Texts
    set: dict[Text, Text]
    on: Text | None
    script: Text | None
    data_root: Text | None
    scripts_sha256: Text | None


def request_like(
    record: JobRecord, *, keys: frozenset[str] = frozenset(), takes_scripts: bool = True
) -> JobRequest:
    """Return the request that asks for what the job `record` ran: the same descriptor, scripts, arguments and `--set`.

    keys: those that are set anew. takes_scripts: its own, and no others. Raises UsageError where that cannot be had any more, StoreError, FindingsError.
    """
    found: dict[str, Any] | None = record.read_object(record.key(REQUEST))
    if found is None:
        raise UsageError(
            f"--like {record.job_id}: its record does not say how it was asked for: it came through the service, or an older version "
            "of bai started it; name its FILE"
        )
    request: _Request = validated(_Request, found, where=f"{record.store.url}/{record.key(REQUEST)}")
    values = {key: text for key, text in request["set"].items() if key not in keys}
    for key, text in values.items():
        if text == REDACTED:
            raise UsageError(
                f"--like {record.job_id}: the value of {key} was a secret and is not kept; add --set {key}=…"
            )
    again = JobRequest(
        file=Path(request["file"]),
        content=request["descriptor"].encode(),
        on=request["on"],
        arguments=tuple(request["arguments"]),
        script=_path(request["script"]),
        data_root=_path(request["data_root"]),
        overrides=read_overrides(f"{key}={text}" for key, text in values.items()),
    )
    return _with_scripts(again, record, request["scripts_sha256"]) if takes_scripts else again


def _with_scripts(again: JobRequest, record: JobRecord, digest: str | None) -> JobRequest:
    """Return the request with scripts of this sum: those that lie where they lay, or the copy that the job on this machine kept."""
    if digest is None:
        return again
    leave_out = [record.store.folder] if record.store.folder is not None else []
    why = "they are gone"
    try:
        descriptor, _ = read_request(again)
        origin = scripts_of_request(again, descriptor)
        if origin is not None and scripts_digest(origin, leave_out) == digest:
            return again
        why = "they have changed since"
    except (ScriptsError, OSError) as error:
        why = str(error)
    if isinstance(record.store, DirectoryStore):
        copy = ScriptsOrigin(path=kept_scripts(record, nodes=record.job().strategy.nodes))
        try:
            if scripts_digest(copy) == digest:
                return dataclasses.replace(again, script=None, scripts=copy.path)
        except (ScriptsError, OSError):
            pass
        where = "and the run has changed the copy that the job kept"
    else:
        sources = [each.src for each in record.job().sources if each.src.endswith(".tar")]
        where = f"the job's own are {sources[0]}" if sources else "and the job kept none"
    raise UsageError(
        f"--like {record.job_id}: its scripts cannot be taken again ({why}), {where}; put them back as they were, or name FILE to run them as they are"
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
