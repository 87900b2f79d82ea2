"""Where an archive's member lands, links of the same archive taken into account; nothing here touches a disk.

An archive may hold a link and then a member "below" that link, or a link whose target leads through other links, so that
a name that looks harmless ends outside the folder. Links are therefore followed here, on the archive's own account,
and made on the disk only when all other members are in place: nothing is ever written through one.
"""

from __future__ import annotations

from collections import deque

_MOST_LINKS = 40
"""As in Linux (path_resolution(7)): a chain of more is a loop."""


class UnsafeMemberError(Exception):
    """A member would lead out of the folder; the text says how."""


class MemberTree:
    """The symbolic links of an archive so far."""

    def __init__(self) -> None:
        self.links: dict[str, str] = {}
        """Place in the folder → target."""

    def locate(self, name: str, *, follow: bool = False) -> str:
        """Return the place of the member `name`, relative to the folder and free of links; "" is the folder itself.

        `follow`: a link at the very end is followed as well. Raises UnsafeMemberError.
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
        """Take a symbolic link into account. Raises UnsafeMemberError where it leads out of the folder."""
        if "\0" in target:
            raise UnsafeMemberError("its target holds a NUL character")
        self._walk(place.split("/")[:-1], target.split("/"), follow=True, absolute=target.startswith("/"))
        self.links[place] = target

    def remove(self, place: str) -> None:
        """Forget a link that another member replaces."""
        self.links.pop(place, None)

    def verify(self) -> None:
        """Raise UnsafeMemberError where a link leads out of the folder now that all links are known."""
        for place, target in self.links.items():
            try:
                self._walk(
                    place.split("/")[:-1], target.split("/"), follow=True, absolute=target.startswith("/")
                )
            except UnsafeMemberError as error:
                raise UnsafeMemberError(f'the link "{place}" to "{target}": {error}') from error

    def _walk(self, base: list[str], parts: list[str], *, follow: bool, absolute: bool = False) -> str:
        if absolute:
            raise UnsafeMemberError("it points to an absolute path")
        at = list(base)
        todo = deque(parts)
        followed = 0
        while todo:
            part = todo.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                if not at:
                    raise UnsafeMemberError("it leads out of the folder")
                at.pop()
                continue
            at.append(part)
            target = self.links.get("/".join(at))
            if target is None or not (todo or follow):
                continue
            followed += 1
            if followed > _MOST_LINKS:
                raise UnsafeMemberError("it leads through links in a circle")
            at.pop()
            todo.extendleft(reversed(target.split("/")))
        return "/".join(at)
