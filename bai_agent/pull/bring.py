"""One source: found at its origin, compared with what is here, fetched, checked, unpacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from bai_agent.errors import PullError
from bai_agent.job.descriptor import Source, Unpack
from bai_agent.job.source_schemes import SCHEMES, scheme_of, schemes_text, source_name
from bai_agent.job.user_rights import User, user_rights
from bai_agent.pull.draft import PartialFile, has_sums
from bai_agent.pull.journal import (
    PREFIX,
    Journal,
    file_journal,
    folder_journal,
    is_record,
    open_journal,
    read_record,
)
from bai_agent.pull.landing import Landing
from bai_agent.pull.problems import disk_problem
from bai_agent.pull.progress import PullWatch
from bai_agent.pull.remote import Remote, RemoteListing, Sums
from bai_agent.pull.task import Pulled, PullTask
from bai_agent.pull.unpack import unpack


@dataclass(frozen=True)
class _Place:
    root: Path
    journal: Path


def bring(task: PullTask, watch: PullWatch, *, before: object) -> Pulled:
    """Bring one source to its place. `before`: what an earlier run of this job noted of it. Raises PullError."""
    try:
        user = task.landing_user()
        known = _finished_before(before, user) or _bring_anew(task, watch, user)
    except OSError as error:
        raise disk_problem(task.tally.src, error, root=task.target) from error
    tally = task.tally
    tally.bytes = tally.total_bytes = known.bytes
    tally.objects = tally.total_objects = known.files
    tally.done = True
    return known


class Origin(Protocol):
    """Where a source comes from. All methods raise PullError."""

    def survey(self) -> RemoteListing:
        """Return what the source is, before any of it is fetched."""
        ...

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        """Fetch `remotes`; each complete draft goes to `keep`, with what it holds by now."""
        ...


def open_origin(source: Source, watch: PullWatch) -> Origin:
    """Return where `source` comes from. Raises PullError."""
    scheme = SCHEMES.get(scheme_of(source.src))
    if scheme is None:
        raise PullError(f"{source_name(source.src)}: is none of {schemes_text()}")
    # Only here: what a protocol takes to import is paid for by jobs that use it.
    kind: Callable[[Source, PullWatch], Origin] = resolve_name(f"bai_agent.pull.{scheme.origin}")
    return kind(source, watch)


def _finished_before(before: object, user: User | None) -> Pulled | None:
    """Return the manifest's entry, if all of it is still in place: nothing is asked of the network then."""
    if not isinstance(before, dict):
        return None
    try:
        known = Pulled(**before)
    except TypeError:  # another version of the agent wrote it
        return None
    with user_rights(user):
        record = read_record(Path(known.journal))
        complete = record.done.get(known.src)
        if complete is None or not record.intact(Path(known.root), known.src):
            return None
    return known if complete.get("tag") == known.tag else None


def _bring_anew(task: PullTask, watch: PullWatch, user: User | None) -> Pulled:
    source, tally = task.source, task.tally
    origin = open_origin(source, watch)
    if (reader := task.reader()) is not None:
        from bai_agent.pull.local import LocalOrigin

        assert isinstance(origin, LocalOrigin)
        origin.reader = reader
    listing = origin.survey()
    if listing.folder and (task.sums.wanted or source.unpack is not Unpack.NO):
        raise PullError(f"{tally.src}: is a folder; it has no checksum and cannot be unpacked")
    name = task.target.name
    if not listing.folder and source.path.endswith("/") and source.unpack is Unpack.NO:
        name = listing.objects[0].name
        if not name:
            raise PullError(f"{tally.src}: has no file name; say it in path")
    place = _place(task, folder=listing.folder, name=name)
    if listing.folder and listing.is_at(task.target, user=user):
        # Named as source and as path: there is nothing to do, and no record is needed.
        return _in_place(listing, task, place)
    with open_journal(place.journal, watch, user=user) as journal:
        landing = Landing(
            root=place.root,
            journal=journal,
            src=tally.src,
            mode=int(source.mode, 8) if source.mode else None,
            watch=watch,
            tally=tally,
            user=user,
        )
        if listing.folder:
            facts = _bring_folder(origin, listing, landing)
        elif source.unpack is Unpack.NO:
            facts = _bring_file(origin, listing, name, landing, task, journal)
        else:
            facts = _bring_archive(origin, listing.objects[0], landing, task, journal)
        landing.remove_stale()
        files, size = landing.counts()
        facts = {
            "tag": None,
            "md5": None,
            "sha256": None,
            **facts,
            "unpack": source.unpack.value,
            "files": files,
            "bytes": size,
        }
        if journal.record.done.get(tally.src) != facts:
            journal.done(tally.src, facts)
        return _pulled(task, place, facts)


def _in_place(listing: RemoteListing, task: PullTask, place: _Place) -> Pulled:
    size = sum(remote.size or 0 for remote in listing.objects)
    unknown = {"tag": None, "md5": None, "sha256": None}
    return _pulled(task, place, {"files": len(listing.objects), "bytes": size, **unknown})


def _bring_folder(origin: Origin, listing: RemoteListing, landing: Landing) -> dict[str, Any]:
    remotes = [remote for remote in listing.objects if not is_record(remote.name)]
    if not remotes:
        raise PullError(f"{landing.src}: there is nothing below it; check its spelling")
    tally = landing.tally
    tally.total_bytes = sum(remote.size or 0 for remote in remotes)
    missing = [remote for remote in remotes if not landing.holds(remote)]
    tally.objects = len(remotes) - len(missing)
    tally.bytes = tally.total_bytes - sum(remote.size or 0 for remote in missing)
    tally.total_objects = len(remotes)
    for remote in missing:
        landing.require_free(remote.name)
    landing.require_space(sum(remote.size or 0 for remote in missing))

    def keep(draft: PartialFile, remote: Remote) -> None:
        draft.verify(size=remote.size, sums=Sums())
        landing.place(draft, tag=remote.tag, mode=remote.mode)
        tally.objects += 1

    origin.fetch(missing, landing, keep=keep)
    return {}


def _bring_file(
    origin: Origin, listing: RemoteListing, name: str, landing: Landing, task: PullTask, journal: Journal
) -> dict[str, Any]:
    remote = replace(listing.objects[0], name=name)
    tally = landing.tally
    tally.total_bytes, tally.total_objects = remote.size, 1
    path = landing.root / name
    if listing.is_at(path, user=landing.user):
        return {"tag": remote.tag}  # the user's own file, named as source and as path: there is nothing to do
    _expect_size(task, remote)
    if landing.holds(remote):
        put = journal.record.puts[name]
        # The record is no proof: who may write to the folder may have written it.
        if not task.sums.wanted or has_sums(path, task.sums, landing.watch, user=landing.user):
            return {
                "tag": remote.tag,
                "md5": task.sums.md5 or put.md5,
                "sha256": task.sums.sha256 or put.sha256,
            }
    landing.require_free(name)
    landing.require_space((remote.size or 0) - landing.unfinished_bytes(name))
    facts: dict[str, Any] = {}

    def keep(draft: PartialFile, arrived: Remote) -> None:
        draft.verify(size=_size(task, arrived), sums=task.sums)
        landing.place(draft, tag=arrived.tag, sums=task.sums, mode=arrived.mode)
        facts.update(tag=arrived.tag, md5=task.sums.md5, sha256=task.sums.sha256)

    origin.fetch([remote], landing, keep=keep)
    return facts


def _bring_archive(
    origin: Origin, found: Remote, landing: Landing, task: PullTask, journal: Journal
) -> dict[str, Any]:
    tally = landing.tally
    tally.total_bytes, tally.total_objects = found.size, 1
    _expect_size(task, found)
    facts = journal.record.done.get(landing.src)
    if (
        facts is not None
        and found.tag is not None
        and facts["tag"] == found.tag
        and all(facts[kind] == getattr(task.sums, kind) for kind in task.sums.wanted)
        and (journal.trusted or not task.sums.wanted)
        and facts["unpack"] == task.source.unpack.value
        and landing.is_intact()
    ):
        landing.adopt()
        return {key: facts[key] for key in ("tag", "md5", "sha256")}
    name = f"{PREFIX}.{found.name}"
    landing.require_space((found.size or 0) - landing.unfinished_bytes(name))
    facts = {}

    def keep(draft: PartialFile, arrived: Remote) -> None:
        # Whole and checked before the first member lands; then read as a stream.
        draft.verify(size=_size(task, arrived), sums=task.sums)
        # The name may become another file's where somebody else can write; what was checked is this one.
        unpack(draft.path if landing.user is None else Path(f"/proc/self/fd/{draft.descriptor}"), landing)
        facts.update(tag=arrived.tag, md5=task.sums.md5, sha256=task.sums.sha256)

    origin.fetch([Remote(name=name, key=found.key, size=found.size, tag=found.tag)], landing, keep=keep)
    landing.discard_draft(name)
    return facts


def _expect_size(task: PullTask, remote: Remote) -> None:
    wanted = task.source.size
    if wanted is not None and remote.size is not None and wanted != remote.size:
        raise PullError(
            f"{task.tally.src}: has {remote.size:,} bytes instead of the {wanted:,} that the descriptor says"
        )


def _size(task: PullTask, remote: Remote) -> int | None:
    return task.source.size if task.source.size is not None else remote.size


def _place(task: PullTask, *, folder: bool, name: str) -> _Place:
    if task.source.unpack is not Unpack.NO:
        return _Place(task.unpack_root, folder_journal(task.unpack_root))
    if folder:
        return _Place(task.target, folder_journal(task.target))
    target = task.target / name if task.source.path.endswith("/") else task.target
    return _Place(target.parent, file_journal(target))


def _pulled(task: PullTask, place: _Place, facts: dict[str, Any]) -> Pulled:
    return Pulled(
        src=task.tally.src,
        path=str(task.target),
        root=str(place.root),
        journal=str(place.journal),
        **{key: facts[key] for key in ("files", "bytes", "tag", "md5", "sha256")},
    )
