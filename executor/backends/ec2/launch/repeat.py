"""Checks a stored launch before its request is sent again. The stored launch must equal the launch that this
`bai` would make itself.

Other users may have write access to the bucket. The request in `launch.json` is sent with the credentials of the user
who repeats the submission. So the launch is rendered again from the descriptor and the configuration, and compared
with the file. Only two kinds of values are taken from the file: the launch's times, and results of look-ups that
cannot be repeated (the image that a parameter named, the subnets that existed).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from bai_agent import __version__
from bai_agent.job.descriptor import Job
from bai_agent.job.record import JobRecord
from executor.backends.ec2.launch.draft import LaunchPlan, draft
from executor.backends.ec2.launch.images import found_before, image_reference
from executor.backends.ec2.launch.launch_record import LaunchFile, attempt_key, round_key
from executor.backends.ec2.launch.resolve import Candidate, resolve
from executor.backends.ec2.launch.waiting import as_round
from executor.backends.ec2.session import AwsSession
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.errors import UsageError
from executor.planning.job_toml import job_toml

_CLOCKS = timedelta(minutes=15)
"""Longest time by which another submitter's clock may be ahead. AWS refuses a request if its time differs from AWS's
clock by more than `_CLOCKS`."""


def problem_with(
    record: JobRecord,
    file: LaunchFile,
    job: Job | None,
    ours: Callable[[], LaunchFile],
    *,
    region: str,
    now: datetime,
) -> str | None:
    """Return the reason why the stored `file` must not be sent; None if the stored launch is exactly the
    launch that this process would make.

    job: the job in the store's job.toml; None if the store has no job.toml. ours: function that renders the
    launch again; called only if everything else is valid. region: the region of that launch. Raises
    StoreError and the errors of `ours`.
    """
    where = f"{record.store.url}/{attempt_key(record, file.attempt, 'launch.json')}"
    advice = "Nothing was sent to EC2, and EC2 shows no machine of the job; submit the job with a new job id"
    if job is None:
        return f"{where} exists, but the job's job.toml, which is written first, is missing. {advice}"
    if file.bai != __version__:
        writer = f"version {json.dumps(file.bai)} of `bai`" if file.bai else "another version of `bai`"
        return f"{where} was written by {writer}, and only the same version can repeat the launch; this version is {__version__}. {advice}"
    # The version of `bai` is compared first, because another version may also have rendered the fields
    # differently. Machines that another version launched can still be looked up.
    check_job_bytes(record, job)
    if file.region != region:
        differing = ["region"]
    elif file.begun > now + _CLOCKS:
        differing = ["created"]
    else:
        differing = differences(file, ours())
    if not differing:
        return None
    return (
        f"{where} is not the launch that the descriptor and the configuration make now: {differ(differing)}. {advice}, or with the "
        "configuration of the first submission"
    )


def problem_with_round(
    record: JobRecord, begun: LaunchFile, file: LaunchFile, *, deadman: timedelta, now: datetime
) -> str | None:
    """Return the reason why the stored round `file` must not be sent; None if the stored round is exactly the round
    that follows from the launch `begun`."""
    if file.wait is None or file.begun > now + _CLOCKS:
        differing = ["created"]
    else:
        differing = differences(file, as_round(begun, file.wait.round, now=file.begun, deadman=deadman))
    if not differing:
        return None
    where = f"{record.store.url}/{round_key(record, file.attempt, file.round, 'launch.json')}"
    return f"{where} does not match launch.json: {differ(differing)}. Nothing was sent to EC2; submit the job with a new job id"


def differ(names: Sequence[str]) -> str:
    """Return part of a sentence that says that the fields with these names differ."""
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"


def redraw(
    file: LaunchFile, job: Job, descriptor: Descriptor, settings: Settings, aws: AwsSession, *, cache: Path
) -> LaunchPlan:
    """Return the launch of `job` as of the time when `file` was written. Raises the errors of `draft`."""
    found = resolve(descriptor, settings, aws)
    named = str(file.request.get("ImageId"))
    resolved = replace(
        found,
        image=found_before(image_reference(descriptor, found.kinds_of_image), named, found.image, aws),
        candidates=file.candidates
        if set(file.candidates) <= set(found.candidates)
        and _kinds(file.candidates) == _kinds(found.candidates)
        else found.candidates,
    )
    return draft(job, descriptor, settings, aws, cache=cache, now=file.begun, resolved=resolved, exists=True)


def _kinds(candidates: Iterable[Candidate]) -> list[tuple[str, str]]:
    """Return the candidates' instance types and markets, in order. Subnets are left out, because subnets may
    have changed since the first launch."""
    return list(dict.fromkeys(each.kind for each in candidates))


def differences(stored: LaunchFile, ours: LaunchFile) -> list[str]:
    """Return the names of keys that differ between the two launches: parameters of RunInstances, and keys of
    the record."""
    one, other = stored.as_table(), ours.as_table()
    found = [*_differing(one.pop("request"), other.pop("request")), *_differing(one, other)]
    # The token is a checksum of all other fields.
    return [each for each in found if each != "token"] or found


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    keys = [
        key
        for key in sorted({*one, *other})
        if key not in one or key not in other or _text(one[key]) != _text(other[key])
    ]
    return [key if key.isidentifier() and key.isascii() else json.dumps(key) for key in keys]


def _text(value: object) -> str:
    """Return a value's JSON, so that a tuple equals a list with the same items."""
    return json.dumps(value, sort_keys=True)


def check_job_bytes(record: JobRecord, job: Job) -> None:
    """Raise UsageError unless the store's job.toml is `job` as rendered here, byte for byte. Raises StoreError.

    The bytes must be equal because user data may contain only the checksum of job.toml.
    """
    key = record.key("job.toml")
    if record.store.get(key) != job_toml(job).encode():
        raise UsageError(
            f"{record.store.url}/{key} is not the file that this `bai` writes for the job: another version, or another "
            "program, wrote it. Nothing was launched; submit the job with a new job id"
        )
