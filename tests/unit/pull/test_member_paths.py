"""Members of an archive stay in the folder, whatever links the archive holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.pull.unpack import MemberTree, UnsafeMemberError


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a/..", "a\0b"])
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(UnsafeMemberError):
        MemberTree().locate(name)


@pytest.mark.parametrize("name", ["./a//b", "a/./b", "a/b/"])
def test_equivalent_spellings_of_a_member_name_give_the_same_path(name: str) -> None:
    assert MemberTree().locate(name) == "a/b"


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "a/../../x"])
def test_links_that_lead_out_are_refused(target: str) -> None:
    with pytest.raises(UnsafeMemberError):
        MemberTree().add_link("link", target)


def test_a_member_below_a_link_is_placed_where_the_link_points() -> None:
    tree = MemberTree()
    tree.add_link("lib", "usr/lib")
    assert tree.locate("lib/x.so") == "usr/lib/x.so"


def test_a_target_that_escapes_through_another_link_is_refused() -> None:
    # "deep/a/b/up" is the folder itself, so two more ".." leave it although the letters stay inside.
    tree = MemberTree()
    tree.add_link("deep/a/b/up", "../../..")
    with pytest.raises(UnsafeMemberError):
        tree.add_link("escape", "deep/a/b/up/../..")


def test_a_link_that_leaves_the_folder_because_of_a_later_link_is_refused() -> None:
    tree = MemberTree()
    tree.add_link("escape", "a/b/c/..")
    tree.add_link("a/b/c", "../..")
    with pytest.raises(UnsafeMemberError, match="escape"):
        tree.verify()


def test_links_in_a_circle_are_refused() -> None:
    tree = MemberTree()
    tree.add_link("a", "b")
    tree.add_link("b", "a")
    with pytest.raises(UnsafeMemberError, match="circle"):
        tree.locate("a/y")


PART = st.sampled_from(["a", "b", "c", "..", ".", ""])
PATH = st.lists(PART, min_size=1, max_size=5).map("/".join)
NAME = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)


@given(links=st.lists(st.tuples(NAME, PATH), max_size=6), names=st.lists(PATH, max_size=4))
def test_links_are_resolved_as_the_kernel_resolves_them(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]], names: list[str]
) -> None:
    # given whatever links are accepted, made on a disk
    root = tmp_path_factory.mktemp("tree") / "root"
    root.mkdir()
    tree = MemberTree()
    for name, target in links:
        try:
            place = tree.locate(name)
            if place:
                tree.add_link(place, target)
            tree.verify()
        except UnsafeMemberError:
            return
    for place, target in tree.links.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_dir() or path.is_symlink():
            path.symlink_to(target or ".")
    # then no accepted name leads out of the folder, for the kernel as well
    for name in names:
        try:
            place = tree.locate(name, follow=True)
        except UnsafeMemberError:
            continue
        assert (root / place).resolve().is_relative_to(root.resolve())
    for place in tree.links:
        resolved = Path(root / place)
        try:
            assert resolved.resolve().is_relative_to(root.resolve())
        except RuntimeError:
            pytest.fail("links in a circle were accepted")
