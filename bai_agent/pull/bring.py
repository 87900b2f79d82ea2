"""Brings one source to this machine. The source's files are listed at its origin and compared with the files
on this machine. Files that differ are fetched, verified and unpacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol

from bai_agent.errors import PullError
from bai_agent.files.user_rights import User, may_change, user_rights
from bai_agent.job.descriptor.source_tables import Source, Unpack
from bai_agent.job.schema.source_schemes import SCHEMES, file_path, scheme_of, schemes_text, source_name
from bai_agent.light_dataclass import dataclass, replace
from bai_agent.pull.draft import PartialFile, has_sums
from bai_agent.pull.journal import (
    PREFIX,
    Journal,
    SourceFacts,
    file_journal,
    folder_journal,
    is_record,
    open_journal,
    read_record,
)
from bai_agent.pull.landing import Landing, disk_problem
from bai_agent.pull.progress import PullProgress, PullWatch
from bai_agent.pull.remote import Remote, RemoteListing, Sums
from bai_agent.pull.unpack import unpack


@dataclass(frozen=True)
class PullTask:
    """A source and its place on this machine."""

    source: Source
    target: Path
    tally: PullProgress
    user: User | None = None
    """The benchmark's user, if it differs from the agent's user."""

    @property
    def key(self) -> str:
        """Key of this source, with all its options, in the manifest."""
        source = self.source
        wanted = (source.directory, source.md5, source.sha256, source.unpack.value, source.mode)
        return " ".join([self.tally.src, str(self.target), *map(str, wanted)])

    @property
    def group(self) -> Path:
        return self.unpack_root if self.source.unpack is Unpack.IN_PLACE else self.target

    def landing_user(self) -> User | None:
        """Return the user with whose rights the files are written: the benchmark's user if this user can
        write at the target, and None (the agent's user) otherwise. Raises OSError."""
        root = self.target if self.source.unpack is Unpack.NO else self.unpack_root
        return self.user if self.user is not None and may_change(self.user, root) else None

    def reader(self) -> User | None:
        """Return the user with whose rights a local source is read: the benchmark's user if this user could
        change the path, and None (the agent's user) otherwise. Raises OSError."""
        path = file_path(self.source.src) if scheme_of(self.source.src) == "file" else None
        return (
            self.user if self.user is not None and path is not None and may_change(self.user, path) else None
        )

    @property
    def unpack_root(self) -> Path:
        """Folder into which an archive is unpacked."""
        beside = self.source.unpack is Unpack.IN_PLACE and not self.source.path.endswith("/")
        return self.target.parent if beside else self.target

    @property
    def lands_as_file(self) -> bool:
        source = self.source
        return source.unpack is Unpack.NO and not (
            source.directory or source.src.endswith("/") or source.path.endswith("/")
        )

    @property
    def sums(self) -> Sums:
        source = self.source
        return Sums(
            md5=source.md5.lower() if source.md5 else None,
            sha256=source.sha256.lower() if source.sha256 else None,
        )


@dataclass(frozen=True)
class Pulled:
    """Entry of the manifest about a source that has been pulled completely."""

    src: str
    path: str
    root: str
    journal: str
    files: int
    bytes: int
    tag: str | None
    md5: str | None
    sha256: str | None


_Content = dict[str, str | None]
"""The tag and the checksums of a source, as far as known. The keys are names of fields of SourceFacts."""


@dataclass(frozen=True)
class _Place:
    root: Path
    journal: Path


def bring(task: PullTask, watch: PullWatch, *, before: object) -> Pulled:
    """Bring one source to its target path. before: the source's entry in the manifest of an earlier agent.
    Raises PullError."""
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
    """The place from which a source is fetched, such as a bucket. All methods raise PullError."""

    def survey(self) -> RemoteListing:
        """List the files of the source and their metadata, before anything is fetched."""
        ...

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        """Fetch the files `remotes`. Call `keep` with each complete temporary file and the file's current
        metadata."""
        ...


def open_origin(source: Source, watch: PullWatch) -> Origin:
    """Return the origin of `source`. Raises PullError."""
    scheme = SCHEMES.get(scheme_of(source.src))
    if scheme is None:
        raise PullError(f"{source_name(source.src)}: must be one of {schemes_text()}")
    # Imported here, so that a job imports only the modules for the protocols that it uses.
    kind: Callable[[Source, PullWatch], Origin] = resolve_name(f"bai_agent.pull.{scheme.origin}")
    return kind(source, watch)


def _finished_before(before: object, user: User | None) -> Pulled | None:
    """Return the source's entry in the manifest if all files of the source are still in place, and None
    otherwise. Sends no network request."""
    if not isinstance(before, dict):
        return None
    try:
        known = Pulled(**before)
    except TypeError:  # written by another version of the agent
        return None
    with user_rights(user):
        record = read_record(Path(known.journal))
        complete = record.done.get(known.src)
        if complete is None or not record.intact(Path(known.root), known.src):
            return None
    return known if complete.tag == known.tag else None


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
            raise PullError(f"{tally.src}: has no file name; write the name in path")
    place = _place(task, folder=listing.folder, name=name)
    if listing.folder and listing.is_at(task.target, user=user):
        # The source is the target folder itself, so nothing is copied and no record is written.
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
            content = _bring_folder(origin, listing, landing)
        elif source.unpack is Unpack.NO:
            content = _bring_file(origin, listing, name, landing, task, journal)
        else:
            content = _bring_archive(origin, listing.objects[0], landing, task, journal)
        landing.remove_stale()
        files, size = landing.counts()
        facts = SourceFacts(**content, unpack=source.unpack.value, files=files, bytes=size)
        if journal.record.done.get(tally.src) != facts:
            journal.done(tally.src, facts)
        return _pulled(task, place, facts)


def _in_place(listing: RemoteListing, task: PullTask, place: _Place) -> Pulled:
    size = sum(remote.size or 0 for remote in listing.objects)
    facts = SourceFacts(unpack=task.source.unpack.value, files=len(listing.objects), bytes=size)
    return _pulled(task, place, facts)


def _bring_folder(origin: Origin, listing: RemoteListing, landing: Landing) -> _Content:
    remotes = [remote for remote in listing.objects if not is_record(remote.name)]
    if not remotes:
        raise PullError(f"{landing.src}: contains no files; check the spelling")
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
) -> _Content:
    remote = replace(listing.objects[0], name=name)
    tally = landing.tally
    tally.total_bytes, tally.total_objects = remote.size, 1
    path = landing.root / name
    if listing.is_at(path, user=landing.user):
        return {"tag": remote.tag}  # the user's own file is both source and path, so nothing is copied
    _expect_size(task, remote)
    if landing.holds(remote):
        put = journal.record.puts[name]
        # The record alone is no proof of the checksums, because anybody who can write to the folder could
        # have written the record.
        if not task.sums.wanted or has_sums(path, task.sums, landing.watch, user=landing.user):
            return {
                "tag": remote.tag,
                "md5": task.sums.md5 or put.md5,
                "sha256": task.sums.sha256 or put.sha256,
            }
    landing.require_free(name)
    landing.require_space((remote.size or 0) - landing.unfinished_bytes(name))
    content: _Content = {}

    def keep(draft: PartialFile, arrived: Remote) -> None:
        draft.verify(size=_size(task, arrived), sums=task.sums)
        landing.place(draft, tag=arrived.tag, sums=task.sums, mode=arrived.mode)
        content.update(tag=arrived.tag, md5=task.sums.md5, sha256=task.sums.sha256)

    origin.fetch([remote], landing, keep=keep)
    return content


def _bring_archive(
    origin: Origin, found: Remote, landing: Landing, task: PullTask, journal: Journal
) -> _Content:
    tally = landing.tally
    tally.total_bytes, tally.total_objects = found.size, 1
    _expect_size(task, found)
    facts = journal.record.done.get(landing.src)
    if (
        facts is not None
        and found.tag is not None
        and facts.tag == found.tag
        and all(getattr(facts, kind) == getattr(task.sums, kind) for kind in task.sums.wanted)
        and (journal.trusted or not task.sums.wanted)
        and facts.unpack == task.source.unpack.value
        and landing.is_intact()
    ):
        landing.adopt()
        return {"tag": facts.tag, "md5": facts.md5, "sha256": facts.sha256}
    name = f"{PREFIX}.{found.name}"
    landing.require_space((found.size or 0) - landing.unfinished_bytes(name))
    content: _Content = {}

    def keep(draft: PartialFile, arrived: Remote) -> None:
        # The archive is verified before the first member is written.
        draft.verify(size=_size(task, arrived), sums=task.sums)
        # If other users can write to the folder, the name possibly refers to another file by now. The
        # descriptor still refers to the file that was verified.
        unpack(draft.path if landing.user is None else Path(f"/proc/self/fd/{draft.descriptor}"), landing)
        content.update(tag=arrived.tag, md5=task.sums.md5, sha256=task.sums.sha256)

    origin.fetch([Remote(name=name, key=found.key, size=found.size, tag=found.tag)], landing, keep=keep)
    landing.discard_draft(name)
    return content


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


def _pulled(task: PullTask, place: _Place, facts: SourceFacts) -> Pulled:
    return Pulled(
        src=task.tally.src,
        path=str(task.target),
        root=str(place.root),
        journal=str(place.journal),
        **{key: value for key, value in vars(facts).items() if key != "unpack"},
    )
