"""Unpacking an archive into a folder, member by member. What would leave the folder is refused by name.

A killed run starts again from the archive's first member: what is in place already is ours, and is replaced by itself.
"""

from __future__ import annotations

import stat
from pathlib import Path

from bai_agent.errors import PullError
from bai_agent.pull.archive import ArchiveError, Member, MemberKind, open_archive
from bai_agent.pull.draft import CHUNK
from bai_agent.pull.journal import is_record
from bai_agent.pull.landing import Landing
from bai_agent.pull.member_paths import MemberTree, UnsafeMemberError
from bai_agent.pull.problems import printable

_LOOK_AT_SPACE = 1 << 20
"""Members above this size are compared with the free space before they are written."""


def unpack(archive: Path, landing: Landing) -> None:
    """Put the members of `archive` into `landing`. Raises PullError, ArchiveError as one too."""
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


def _unpack_member(member: Member, tree: MemberTree, landing: Landing) -> None:
    if member.kind is MemberKind.DEVICE:
        raise UnsafeMemberError(f"it is a {member.kind.value}")
    place = tree.locate(member.name, follow=member.kind is MemberKind.FOLDER)
    if is_record(place):
        return  # the record of another pull, packed along with its data
    if member.kind is MemberKind.FOLDER:
        landing.make_folder(place or ".")
        return
    if not place:
        raise UnsafeMemberError("it would replace the folder itself")
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


def _hard_link(member: Member, place: str, tree: MemberTree, landing: Landing) -> None:
    existing = tree.locate(member.target)
    if existing == place:
        return
    if existing in tree.links:
        tree.add_link(place, tree.links[existing])
    elif landing.placed(existing):
        landing.place_hard_link(place, existing)
    else:
        raise UnsafeMemberError(
            f'it is a hard link to "{printable(member.target)}", which the archive does not hold before it'
        )


def _permissions(mode: int) -> int:
    """Return `mode` without what no data needs: other people's right to write, setuid, setgid, sticky."""
    allowed = (mode & 0o755) | stat.S_IRUSR | stat.S_IWUSR
    return allowed if mode & stat.S_IXUSR else allowed & ~0o111
