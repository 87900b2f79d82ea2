"""Makes the request of an earlier job again, for `--like JOB` and `--resume JOB`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath

from bai_agent.errors import PullError, StoreError
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import dataclass, replace
from executor.descriptor.model import Script
from executor.descriptor.override_places import (
    OTHER_SCRIPTS,
    REPOSITORY,
    names_other_scripts,
    put_overrides,
)
from executor.descriptor.overrides import REDACTED, Override, read_overrides
from executor.descriptor.raw_table import Raw, at, text_at
from executor.descriptor.toml_file import parse_toml
from executor.descriptor.toml_text import overlap
from executor.errors import ScriptsError, UsageError
from executor.jobs.earlier_jobs import CHECKPOINT_KEY
from executor.owned_folders import scratch_folder
from executor.planning.job_sources import script_archive, script_folder
from executor.planning.request import LAST, JobRequest
from executor.planning.rerun_record import kept_request, kept_scripts
from executor.planning.scripts_folder import ScriptsOrigin, scripts_digest

_SCRATCH = ".bai-like-"
_SECONDS = 600.0
"""Longest time for fetching the scripts of an earlier job, for all steps together (seconds)."""
_PIECE = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Makes the request of an earlier job again."""

    record: JobRecord
    option: str
    """Command-line option that error messages name, for example "--like"."""
    stack: ExitStack
    """Exit stack that removes the fetched scripts when it is closed."""
    open_store: Callable[[str], JobStore]
    """Function that opens the store at an address."""

    def request(self, overrides: Sequence[Override] = (), *, takes_scripts: bool = True) -> JobRequest:
        """Return a request for the same run: the same descriptor, scripts, arguments and `--set`.

        overrides: values that the caller will add to the returned request, which has no values for the keys
        of `overrides`. takes_scripts: whether the earlier job's scripts are used, unless `overrides` name
        other scripts. Raises StoreError, and UsageError if the earlier job's scripts are no longer available.
        """
        request = kept_request(self.record)
        if request is None:
            repeat = self.record.job().repeat
            raise self._error(
                "the job compared several files; run `bai ab` with these files again"
                if repeat is not None and repeat.arms
                else "the job's record contains no request: the job came through the service, or from an older version of bai; "
                "name the job's FILE"
            )
        keys = {each.key for each in overrides}
        values = {key: text for key, text in request.set.items() if key not in keys}
        for key, text in values.items():
            if text == REDACTED:
                raise self._error(f"the value of {key} was a secret and is not kept; add --set {key}=…")
        again = request.as_request(values)
        if names_other_scripts(overrides):
            kept = tuple(each for each in again.overrides if each.path not in REPOSITORY)
            again = replace(again, overrides=kept)
        digest = request.scripts_sha256
        # If the request has `--script`, these keys of the descriptor have no effect.
        named_anew = again.script is None and any(
            overlap(each.path, place) for each in overrides for place in (*OTHER_SCRIPTS, *REPOSITORY)
        )
        if digest is None or named_anew or not takes_scripts:
            return again
        return self._with_scripts(again, digest)

    def _with_scripts(self, again: JobRequest, digest: str) -> JobRequest:
        """Return the request with the scripts that have the checksum `digest`. These are the original scripts
        if they are unchanged, otherwise the earlier job's copy with its commit."""
        record = self.record
        with_copy = replace(again, of_copy=True, git=record.job().git)
        leave_out = [record.store.folder] if record.store.folder is not None else []
        why, origin = "they are gone", None
        try:
            origin = _origin(again)
            if origin is not None and origin.path.exists():
                if scripts_digest(origin, leave_out) == digest:
                    return again
                why = "they have changed since"
        except (ScriptsError, OSError) as error:
            why = str(error)
        if origin is not None and not origin.is_folder and origin.member is None:
            where = "and a job keeps no copy of an archive"
        elif isinstance(record.store, DirectoryStore):
            copy = kept_scripts(record, nodes=record.job().strategy.nodes)
            try:
                if scripts_digest(ScriptsOrigin(path=copy)) == digest:
                    return _with_copy(with_copy, copy)
            except (ScriptsError, OSError):
                pass
            where = "and the run has changed the job's copy"
        else:
            sources = [each for each in record.job().sources if each.kind is SourceKind.SCRIPTS]
            where = "and the job kept no copy"
            if sources:
                try:
                    return _with_copy(with_copy, self._fetched(sources[0], digest))
                except (StoreError, PullError, ScriptsError, OSError) as error:
                    where = f"and the job's copy cannot be fetched: {error}"
        if again.script is None and text_at(_script_table(again), "git"):
            return again  # The saved request contains the commit of the scripts.
        raise self._error(
            f"the job's scripts are not available ({why}), {where}; restore the scripts, or name FILE to run the current scripts"
        )

    def _fetched(self, source: Source, digest: str) -> Path:
        """Fetch the scripts that a job on other machines used, and return the fetched scripts. Raises
        StoreError, PullError, ScriptsError, OSError."""
        folder = scratch_folder(_SCRATCH, stack=self.stack)
        scripts = _fetch_scripts(source, folder, open_store=self.open_store)
        if scripts_digest(ScriptsOrigin(path=scripts)) != digest:
            raise PullError(f"the content of {source.src} differs from the job's record")
        return scripts

    def _error(self, sentence: str) -> UsageError:
        return UsageError(f"{self.option} {self.record.job_id}: {sentence}")


def from_checkpoint(record: JobRecord) -> Sequence[Override]:
    """Return the overrides with which the repeated job `record` begins from its newest checkpoint. Raises
    UsageError."""
    job = record.job()
    if job.checkpoint is None:
        raise UsageError(
            f"--resume {record.job_id}: the job has no [checkpoint], so no checkpoint was saved; --like {record.job_id} runs it from the beginning"
        )
    values = [f"{CHECKPOINT_KEY}=job:{record.job_id}"]
    if job.strategy.is_supervised:  # The original descriptor need not contain a `[checkpoint]` table.
        values.append(f"checkpoint.path={job.checkpoint.path}")
    return read_overrides(values)


def goes_on_from(record: JobRecord, name: str) -> bool:
    """Return whether the job `record` began from a checkpoint of a job that `name` may stand for. `name` is
    an id, the beginning of an id, or "last"."""
    job = record.job()
    start = "" if name in (LAST, f"{LAST}:{job.job.name}") else name
    return job.set.get(CHECKPOINT_KEY, "").startswith(f"job:{start}")


def _script_table(again: JobRequest) -> Raw:
    """Return `[ml.script]`, even if other files that the request needs are gone."""
    table, _ = parse_toml(again.content or b"", file=str(again.file))
    if table is None:
        return {}
    put_overrides(table, again.overrides, file=str(again.file))
    return at(table, "ml", "script")


def _origin(again: JobRequest) -> ScriptsOrigin | None:
    """Return the original folder of the scripts; None if unknown."""
    if again.script is not None:
        return ScriptsOrigin(path=again.script, member=again.script.name, is_folder=again.script.is_dir())
    named, folder = _script_table(again), again.file.absolute().parent
    try:
        script = Script(path=text_at(named, "path") or None, script=text_at(named, "script") or None)
    except ValueError:
        return None
    return script_folder(script, folder=folder) or script_archive(script, folder=folder)


def _with_copy(again: JobRequest, scripts: Path) -> JobRequest:
    """Return the request with the scripts' folder `scripts`. If the request has `--script`, the request gets
    the file of the same name in `scripts`."""
    if again.script is not None:
        return replace(again, script=scripts / again.script.name)
    return replace(again, scripts=scripts)


def _fetch_scripts(source: Source, folder: Path, *, open_store: Callable[[str], JobStore]) -> Path:
    """Download the scripts of `source`, an object in a bucket, into the empty `folder`; return their path.

    The scripts are pulled as an agent pulls them: their SHA-256 is checked, and nothing is written outside of
    the folder. open_store: function that opens the store at an address of the bucket. Raises StoreError,
    PullError.
    """
    if source.sha256 is None or source.size is None:
        raise PullError(f"{source.src}: the job's record lacks its checksum or its size")
    if PurePosixPath(source.path).is_absolute():
        raise PullError(f'{source.src}: its path "{source.path}" leads out of the scripts\' folder')
    deadline = time.monotonic() + _SECONDS
    archive = folder / "archive"
    try:
        _download(source, archive, open_store=open_store, deadline=deadline)
        scripts = pull_scripts(
            replace(source, src=archive.as_uri(), region=None, arm=None), folder, deadline=deadline
        )
        archive.unlink()
    except OSError as error:
        raise PullError(f"{error.filename or folder}: {error.strerror}") from error
    return scripts


def pull_scripts(source: Source, folder: Path, *, deadline: float | None = None) -> Path:
    """Pull scripts into a new folder in `folder`, as an agent does; return the path of the new folder. Raises
    PullError.

    deadline: a time of `time.monotonic()`; if None, ten minutes from now.
    """
    # The modules are imported here because the scripts of most jobs are in a folder of this machine.
    from bai_agent.pull.journal import file_journal, folder_journal
    from bai_agent.pull.sources import pull

    scripts = folder / "scripts"
    try:
        pull(
            [source],
            folders={SourceKind.SCRIPTS: scripts},
            manifest=folder / "pulled.json",
            deadline=deadline if deadline is not None else time.monotonic() + _SECONDS,
            report=lambda progress: None,
            stopping=lambda: False,
        )
        # Records that the pull itself wrote into the folder are not part of the scripts.
        for record in (folder_journal, file_journal):
            with suppress(FileNotFoundError, NotADirectoryError):
                record(scripts / source.path).unlink()
    except OSError as error:
        raise PullError(f"{error.filename or folder}: {error.strerror}") from error
    return scripts


def _download(
    source: Source, archive: Path, *, open_store: Callable[[str], JobStore], deadline: float
) -> None:
    place, _, key = source.src.rpartition("/")
    store = open_store(place)
    most, written = source.size or 0, 0
    with archive.open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        while True:
            if time.monotonic() > deadline:
                raise StoreError(f"{source.src}: did not arrive within {_SECONDS:g} s")
            piece = store.get(key, start=written, limit=_PIECE)
            file.write(piece)
            written += len(piece)
            # The size is limited, because any user with write access to the bucket could replace the archive
            # by a huge one.
            if written > most:
                raise PullError(f"{source.src}: is larger than the {most:,} bytes that the job used")
            if len(piece) < _PIECE:
                return
