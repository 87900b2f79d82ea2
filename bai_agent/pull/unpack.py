"""Unpacks an archive into a folder, member by member. A member that would be written outside the folder
causes an error that names the member.

An archive can contain a link and a later member "below" that link, or a link whose target leads through other
links. With such links, a harmless member name can lead out of the folder. `MemberTree` therefore resolves
links without touching the disk. Links are created after all other members, so that nothing is ever written
through a link.

After a kill, the next attempt starts again with the first member and replaces existing members with the same content.
"""

from __future__ import annotations

import stat
from collections import deque
from pathlib import Path

from bai_agent.errors import PullError
from bai_agent.pull.archive import ArchiveError, ArchiveMember, MemberKind, open_archive
from bai_agent.pull.draft import CHUNK
from bai_agent.pull.journal import is_record
from bai_agent.pull.landing import Landing, printable

_MOST_LINKS = 40
"""Longest chain of links, as in Linux: path_resolution(7)."""


class UnsafeMemberError(Exception):
    """A member of an archive would be written outside the folder. The message explains why."""


class MemberTree:
    """The symbolic links among the members that were unpacked so far."""

    def __init__(self) -> None:
        self.links: dict[str, str] = {}
        """Target of each link, by the link's path in the folder."""

    def locate(self, name: str, *, follow: bool = False) -> str:
        """Return the path of the member `name` relative to the folder, after all links are resolved. "" is
        the folder itself.

        `follow`: whether a link in the last component is also resolved. Raises UnsafeMemberError.
        """
        if name.startswith("/"):
            raise UnsafeMemberError("its name is absolute")
        if "\0" in name:
            raise UnsafeMemberError("its name holds a NUL character")
        parts = name.split("/")
        if ".." in parts:
            raise UnsafeMemberError('its name has a ".." part')
        return self._walk([], parts, follow=follow)

    def add_link(self, place: str, target: str) -> None:
        """Add a symbolic link. Raises UnsafeMemberError if the link leads out of the folder."""
        if "\0" in target:
            raise UnsafeMemberError("its target holds a NUL character")
        self._require_inside(place, target)
        self.links[place] = target

    def remove(self, place: str) -> None:
        """Forget a link, because a later member replaces it."""
        self.links.pop(place, None)

    def verify(self) -> None:
        """Raise UnsafeMemberError if a link leads out of the folder. Called after all members are known."""
        for place, target in self.links.items():
            try:
                self._require_inside(place, target)
            except UnsafeMemberError as error:
                raise UnsafeMemberError(f'the link "{place}" to "{target}": {error}') from error

    def _require_inside(self, place: str, target: str) -> None:
        if target.startswith("/"):
            raise UnsafeMemberError("the target is an absolute path")
        self._walk(place.split("/")[:-1], target.split("/"), follow=True)

    def _walk(self, base: list[str], parts: list[str], *, follow: bool) -> str:
        at = list(base)
        todo = deque(parts)
        followed = 0
        while todo:
            part = todo.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                if not at:
                    raise UnsafeMemberError("the path leads out of the folder")
                at.pop()
                continue
            at.append(part)
            target = self.links.get("/".join(at))
            if target is None or not (todo or follow):
                continue
            followed += 1
            if followed > _MOST_LINKS:
                raise UnsafeMemberError("the path leads through a circle of links")
            at.pop()
            todo.extendleft(reversed(target.split("/")))
        return "/".join(at)


_LOOK_AT_SPACE = 1 << 20
"""Members of at least this size are written only if the file system has enough free space (bytes)."""


def unpack(archive: Path, landing: Landing) -> None:
    """Write the members of the archive `archive` into the folder of `landing`. Raises PullError."""
    tree = MemberTree()
    try:
        with open_archive(archive) as members:
            for member in members:
                landing.watch.check()
                try:
                    _unpack_member(member, tree, landing)
                except UnsafeMemberError as error:
                    raise PullError(
                        f'{landing.src}: member "{printable(member.name)}" is refused: {error}'
                    ) from error
    except ArchiveError as error:
        raise PullError(f"{landing.src}: {error}") from error
    try:
        tree.verify()
    except UnsafeMemberError as error:
        raise PullError(f"{landing.src}: {error}") from error
    for place, target in tree.links.items():
        landing.watch.check()
        landing.place_link(place, target)


def _unpack_member(member: ArchiveMember, tree: MemberTree, landing: Landing) -> None:
    if member.kind is MemberKind.DEVICE:
        raise UnsafeMemberError(f"the member is a {member.kind.value}")
    place = tree.locate(member.name, follow=member.kind is MemberKind.FOLDER)
    if is_record(place):
        return  # the record of another pull, which was packed together with its data
    if member.kind is MemberKind.FOLDER:
        landing.make_folder(place or ".")
        return
    if not place:
        raise UnsafeMemberError("the member would replace the folder itself")
    if member.kind is MemberKind.LINK:
        tree.add_link(place, member.target)
        return
    tree.remove(place)
    if member.kind is MemberKind.HARD_LINK:
        _hard_link(member, place, tree, landing)
        return
    if member.size > _LOOK_AT_SPACE:
        landing.require_space(member.size)
    with landing.small(place) as draft:
        with member.open() as content:
            while chunk := content.read(CHUNK):
                landing.watch.check()
                draft.append(chunk)
        landing.place(draft, mode=_permissions(member.mode), mtime=member.mtime)


def _hard_link(member: ArchiveMember, place: str, tree: MemberTree, landing: Landing) -> None:
    existing = tree.locate(member.target)
    if existing == place:
        return
    if existing in tree.links:
        tree.add_link(place, tree.links[existing])
    elif landing.placed(existing):
        landing.place_hard_link(place, existing)
    else:
        raise UnsafeMemberError(
            f'the member is a hard link to "{printable(member.target)}", which is not an earlier member of the archive'
        )


def _permissions(mode: int) -> int:
    """Return `mode` without the bits that data files do not need: setuid, setgid, sticky, and write
    permission for other users."""
    allowed = (mode & 0o755) | stat.S_IRUSR | stat.S_IWUSR
    return allowed if mode & stat.S_IXUSR else allowed & ~0o111
