"""Archives are unpacked unchanged, and harmful members are refused by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import sys
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bai_agent.errors import PullError
from bai_agent.pull.archive import ArchiveError, MemberKind, open_archive
from bai_agent.pull.journal import folder_journal, open_journal
from bai_agent.pull.landing import Landing
from bai_agent.pull.progress import PullEndedError, PullProgress, PullWatch
from bai_agent.pull.unpack import unpack

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Add = Callable[[tarfile.TarFile], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "inside" / "root"


@pytest.fixture
def landing(root: Path) -> Iterator[Landing]:
    watch = PullWatch()
    with open_journal(folder_journal(root), watch) as journal:
        yield Landing(
            root=root,
            journal=journal,
            src="s3://b/k.tar",
            mode=None,
            watch=watch,
            tally=PullProgress("s3://b/k.tar", str(root)),
        )


def file(name: str, content: bytes = b"content", **attributes: int) -> Add:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for key, value in attributes.items():
            setattr(info, key, value)
        tar.addfile(info, io.BytesIO(content))

    return add


def other(name: str, kind: bytes, target: str = "") -> Add:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type = kind
        info.linkname = target
        info.mode = 0o755
        tar.addfile(info)

    return add


def symlink(name: str, target: str) -> Add:
    return other(name, tarfile.SYMTYPE, target)


def tar_bytes(*adds: Add) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for add in adds:
            add(tar)
    return buffer.getvalue()


def archive(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "archive"
    path.write_bytes(content)
    return path


def zip_bytes(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return buffer.getvalue()


def nothing(content: bytes) -> bytes:
    return content


@pytest.mark.parametrize(
    "compress",
    [nothing, gzip.compress, bz2.compress, lzma.compress, zstd.compress],
    ids=lambda f: f.__module__,
)
def test_every_kind_of_tar_is_recognised_by_its_content(
    tmp_path: Path, landing: Landing, root: Path, compress: Callable[[bytes], bytes]
) -> None:
    content = tar_bytes(
        file("a/b.txt", b"1"), file(".hidden", b"2"), other("empty", tarfile.DIRTYPE), file("ü ,:#", b"3")
    )
    unpack(archive(tmp_path, compress(content)), landing)
    assert (root / "a/b.txt").read_bytes() == b"1"
    assert (root / ".hidden").read_bytes() == b"2"
    assert (root / "empty").is_dir()
    assert (root / "ü ,:#").read_bytes() == b"3"


def test_a_zstd_archive_of_several_frames_is_read_to_its_end(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    content = tar_bytes(file("a", b"x" * 50_000), file("z", b"end"))
    frames = zstd.compress(content[:20_000]) + zstd.compress(content[20_000:])
    unpack(archive(tmp_path, frames), landing)
    assert (root / "z").read_bytes() == b"end"


def test_a_zip_with_dotfiles_folders_links_and_permissions(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        target.writestr(".dot", b"1")
        target.writestr("folder/", b"")
        for name, mode, content in [
            ("run.sh", stat.S_IFREG | 0o4777, b"#!/bin/sh"),
            ("link", stat.S_IFLNK | 0o777, b"run.sh"),
        ]:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.create_system = 3
            target.writestr(info, content)
    unpack(archive(tmp_path, buffer.getvalue()), landing)
    assert (root / ".dot").read_bytes() == b"1"
    assert (root / "folder").is_dir()
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o755
    assert os.readlink(root / "link") == "run.sh"  # noqa: PTH115 - the text is what counts


@pytest.mark.parametrize(
    ("adds", "culprit"),
    [
        ([file("../out")], "../out"),
        ([file("a/../../out")], "a/../../out"),
        ([file("/tmp/bai-absolute")], "/tmp/bai-absolute"),
        ([symlink("l", "/etc")], "l"),
        ([symlink("l", "..")], "l"),
        ([symlink("l", ".."), file("l/out")], "l"),
        ([symlink("a", "."), symlink("a/b", ".."), file("b/out")], "a/b"),
        ([symlink("d/e/up", "../.."), symlink("out", "d/e/up/..")], "out"),
        ([other("h", tarfile.LNKTYPE, "/etc/passwd")], "h"),
        ([other("h", tarfile.LNKTYPE, "../out")], "h"),
        ([other("h", tarfile.LNKTYPE, "not/there")], "h"),
        ([other("dev", tarfile.CHRTYPE)], "dev"),
        ([other("disk", tarfile.BLKTYPE)], "disk"),
        ([other("pipe", tarfile.FIFOTYPE)], "pipe"),
        ([file(".")], "."),
    ],
)
def test_members_that_would_leave_the_folder_are_refused_by_name(
    tmp_path: Path, landing: Landing, root: Path, adds: list[Add], culprit: str
) -> None:
    with pytest.raises(PullError, match="refused") as refusal:
        unpack(archive(tmp_path, tar_bytes(*adds)), landing)
    assert f'"{culprit}"' in str(refusal.value)
    assert "s3://b/k.tar" in str(refusal.value)
    assert sorted(entry.name for entry in root.parent.iterdir()) == ["root"]
    assert not any(entry.is_symlink() for entry in root.rglob("*"))


def test_a_zip_member_that_would_leave_the_folder_is_refused(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    with pytest.raises(PullError, match=r"\.\./out"):
        unpack(archive(tmp_path, zip_bytes(**{"../out": b"x"})), landing)
    assert not (root.parent / "out").exists()


def test_links_inside_are_kept_and_members_go_through_them(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    content = tar_bytes(
        symlink("lib", "usr/lib"),
        symlink("lib64", "lib"),
        file("lib64/x.so", b"so"),
        other("hard", tarfile.LNKTYPE, "lib/x.so"),
    )
    unpack(archive(tmp_path, content), landing)
    assert (root / "usr/lib/x.so").read_bytes() == b"so"
    assert not (root / "usr/lib/x.so").is_symlink()
    assert (root / "lib64").is_symlink()
    assert (root / "lib64/x.so").read_bytes() == b"so"
    assert (root / "hard").samefile(root / "usr/lib/x.so")


def test_the_later_of_two_members_with_the_same_name_wins(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    content = tar_bytes(symlink("a", "b"), file("b", b"old"), file("a", b"plain"), file("b", b"new"))
    unpack(archive(tmp_path, content), landing)
    assert not (root / "a").is_symlink()
    assert (root / "a").read_bytes() == b"plain"
    assert (root / "b").read_bytes() == b"new"


def test_no_member_is_written_through_a_link_of_the_user(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "sub").symlink_to(outside)
    with pytest.raises(PullError, match="sub"):
        unpack(archive(tmp_path, tar_bytes(file("sub/x"))), landing)
    assert list(outside.iterdir()) == []


def test_an_existing_file_of_the_user_is_not_overwritten_but_named(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    (root / "mine").write_text("mine")
    with pytest.raises(PullError, match="mine"):
        unpack(archive(tmp_path, tar_bytes(file("mine"))), landing)
    assert (root / "mine").read_text() == "mine"


def test_unpacked_files_have_safe_permissions(tmp_path: Path, landing: Landing, root: Path) -> None:
    content = tar_bytes(file("all", mode=0o7777), file("data", mode=0o666), file("none", mode=0))
    unpack(archive(tmp_path, content), landing)
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in ("all", "data", "none")}
    assert modes == {"all": 0o755, "data": 0o644, "none": 0o600}


def test_unpacking_an_archive_twice_gives_the_same_files(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    path = archive(
        tmp_path, tar_bytes(file("a/b"), symlink("l", "a"), file("l/c"), other("h", tarfile.LNKTYPE, "a/b"))
    )
    unpack(path, landing)
    before = sorted(str(entry.relative_to(root)) for entry in root.rglob("*"))
    unpack(path, landing)
    assert sorted(str(entry.relative_to(root)) for entry in root.rglob("*")) == before


@pytest.mark.parametrize("compress", [nothing, gzip.compress, bz2.compress, lzma.compress, zstd.compress])
def test_a_truncated_archive_is_an_error(
    tmp_path: Path, landing: Landing, compress: Callable[[bytes], bytes]
) -> None:
    whole = compress(tar_bytes(file("a", os.urandom(300_000))))
    with pytest.raises(PullError, match=r"s3://b/k\.tar"):
        unpack(archive(tmp_path, whole[: len(whole) // 2]), landing)


@pytest.mark.parametrize(
    "content",
    [b"", b"plain text\n" * 100, gzip.compress(b"no tar" * 1000, mtime=0), b"PK\x03\x04 broken"],
    ids=["empty", "text", "gzip", "zip"],
)
def test_a_file_that_is_not_an_archive_is_an_error(tmp_path: Path, landing: Landing, content: bytes) -> None:
    with pytest.raises(PullError, match=r"archive|damaged"):
        unpack(archive(tmp_path, content), landing)


def test_a_member_name_that_is_not_utf8_is_unpacked(tmp_path: Path, landing: Landing, root: Path) -> None:
    unpack(archive(tmp_path, tar_bytes(file("caf\udce9"))), landing)
    assert b"caf\xe9" in [os.fsencode(entry.name) for entry in root.iterdir()]


@pytest.mark.parametrize("time", ["inf", "nan", "1e300", "-1e300", "99999999999"])
def test_an_impossible_time_does_not_stop_unpacking(
    tmp_path: Path, landing: Landing, root: Path, time: str
) -> None:
    info = tarfile.TarInfo("f")
    info.pax_headers = {"mtime": time}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)

    unpack(archive(tmp_path, buffer.getvalue()), landing)

    assert (root / "f").is_file()


def test_a_zip_archive_with_contradicting_names_is_damaged(tmp_path: Path, landing: Landing) -> None:
    content = zip_bytes(ü=b"x").replace("ü".encode(), b"\xff\xfe")

    with pytest.raises(PullError, match=r"s3://b/k\.tar: is damaged"):
        unpack(archive(tmp_path, content), landing)


def test_a_zip_member_without_a_name_is_refused(tmp_path: Path, landing: Landing) -> None:
    content = zip_bytes(name=b"x").replace(b"name", b"\0ame")

    with pytest.raises(PullError, match="refused: the member would replace the folder itself"):
        unpack(archive(tmp_path, content), landing)


def test_a_stop_ends_unpacking_between_two_members(tmp_path: Path, landing: Landing) -> None:
    landing.watch.end()
    with pytest.raises(PullEndedError):
        unpack(archive(tmp_path, tar_bytes(file("a"))), landing)


def header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(key: str, value: bytes) -> bytes:
    """Return the record of a pax header: its length, which counts itself, a name and a value."""
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest) + len(str(len(rest)))
    length += len(str(length + len(str(len(rest))))) - len(str(len(rest)))
    return str(length).encode() + rest


def blocks(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


ZEROS = 256 << 20


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(header("pax", tarfile.XHDTYPE, ZEROS), id="pax"),
        pytest.param(header("global", tarfile.XGLTYPE, ZEROS), id="global pax"),
        pytest.param(header("long", tarfile.GNUTYPE_LONGNAME, ZEROS), id="long name"),
        pytest.param(
            blocks(tar_bytes(file("first"))[:1024]) + header("pax", tarfile.XHDTYPE, ZEROS),
            id="second member",
        ),
    ],
)
def test_headers_that_would_fill_the_memory_are_refused(
    tmp_path: Path, landing: Landing, start: bytes
) -> None:
    path = tmp_path / "k.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as archive:
        archive.write(start)
        for _ in range(ZEROS >> 20):
            archive.write(bytes(1 << 20))

    tracemalloc.start()
    with pytest.raises(PullError, match=r"s3://b/k\.tar: .*a member's headers are larger than 4 MiB"):
        unpack(path, landing)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < ZEROS / 8


def test_a_large_header_within_the_limit_is_read(tmp_path: Path, root: Path, landing: Landing) -> None:
    said = pax("SCHILY.xattr.user.note", b"x" * 500_000)
    path = tmp_path / "k.tar"
    path.write_bytes(
        header("pax", tarfile.XHDTYPE, len(said))
        + blocks(said)
        + tar_bytes(file("a", b"1" * 9_000_000), file("b"))
    )

    unpack(path, landing)

    assert (root / "a").stat().st_size == 9_000_000
    assert (root / "b").read_bytes() == b"content"


def test_a_member_beyond_the_archives_end_ends_the_unpacking(tmp_path: Path) -> None:
    path = tmp_path / "k.tar"
    path.write_bytes(header("huge", tarfile.REGTYPE, 1 << 62) + bytes(4096))

    with open_archive(path) as members:
        next(members)
        with pytest.raises(ArchiveError, match="ends in the middle of a member"):
            next(members)


@pytest.mark.parametrize("offset", [2**63 - 1, 2**64 - 1, 2**40])
def test_a_zip_with_an_impossible_member_position_is_refused(
    tmp_path: Path, landing: Landing, offset: int
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        target.writestr("a", b"content")
        # As its directory is written: where the member begins stands only there.
        target.filelist[0].header_offset = offset
    path = tmp_path / "k.zip"
    path.write_bytes(buffer.getvalue())

    with pytest.raises(PullError, match=r"s3://b/k\.tar: is (damaged|no archive)"):
        unpack(path, landing)


def test_a_zip_with_an_impossible_directory_position_is_refused(tmp_path: Path, landing: Landing) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        target.writestr("a", b"content")
    content = bytearray(buffer.getvalue())
    struct.pack_into("<L", content, len(content) - 22 + 12, 0x7FFFFFFF)  # the directory's size
    path = tmp_path / "k.zip"
    path.write_bytes(content)

    with pytest.raises(PullError, match=r"s3://b/k\.tar: is damaged"):
        unpack(path, landing)


def _zip_of_lzma(dictionary: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("member", b"content" * 100)
    content = bytearray(buffer.getvalue())
    struct.pack_into("<I", content, 30 + len("member") + 5, dictionary)
    return bytes(content)


def _xz_of(dictionary: int) -> bytes:
    """An .xz file whose block header names the dictionary's size by its code (xz file format, 5.3.1)."""
    content = bytearray(lzma.compress(tar_bytes(file("member"))))
    size = (content[12] + 1) * 4
    place = content.index(b"\x21\x01", 12) + 2
    content[place] = dictionary
    struct.pack_into("<I", content, 12 + size - 4, zlib.crc32(content[12 : 12 + size - 4]))
    return bytes(content)


def _lzma_of(dictionary: int) -> bytes:
    content = bytearray(lzma.compress(tar_bytes(file("member")), format=lzma.FORMAT_ALONE))
    struct.pack_into("<I", content, 1, dictionary)
    return bytes(content)


def _zstd_of(window_log: int) -> bytes:
    """A frame (RFC 8878, 3.1.1) with a window and an empty last block."""
    return b"\x28\xb5\x2f\xfd" + bytes([0, (window_log - 10) << 3]) + b"\x01\0\0"


@pytest.mark.parametrize(
    "content",
    [
        _zip_of_lzma(0xFFFFFFFF),
        _zip_of_lzma(129 << 20),
        _xz_of(40),
        _xz_of(36),
        _lzma_of(3 << 30),
        _zstd_of(31),
    ],
    ids=["zip", "zip a little", "xz 4 GiB", "xz 1 GiB", "lzma", "zstd"],
)
def test_a_header_that_asks_for_gigabytes_is_refused(
    tmp_path: Path, landing: Landing, root: Path, content: bytes
) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(content)

    with pytest.raises(PullError, match=r"s3://b/k\.tar: needs more than the allowed 128 MiB"):
        unpack(archive, landing)

    assert not (root / "member").exists()


@pytest.mark.parametrize("content", [_zip_of_lzma(64 << 20), _xz_of(28), _lzma_of(64 << 20)])
def test_archives_of_usual_tools_with_best_compression_are_unpacked(
    tmp_path: Path, landing: Landing, root: Path, content: bytes
) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(content)

    unpack(archive, landing)

    assert (root / "member").read_bytes().startswith(b"content")


def test_an_xz_archive_of_several_streams_is_read_to_its_end(
    tmp_path: Path, landing: Landing, root: Path
) -> None:
    content = tar_bytes(file("a", os.urandom(200_000)), file("b"))
    archive = tmp_path / "archive"
    half = len(content) // 2
    archive.write_bytes(lzma.compress(content[:half]) + b"\0" * 8 + lzma.compress(content[half:]) + b"\0" * 4)

    unpack(archive, landing)

    assert (root / "b").read_bytes() == b"content"


@cache
def _whole_archives() -> dict[str, bytes]:
    plain = tar_bytes(file("member"), symlink("link", "member"))
    return {
        "xz": lzma.compress(plain),
        "lzma": lzma.compress(plain, format=lzma.FORMAT_ALONE),
        "zip": _zip_of_lzma(1 << 20),
        "tar": plain,
        "zstd": zstd.compress(plain),
        "gz": gzip.compress(plain),
        "bz2": bz2.compress(plain),
    }


@given(
    st.binary(max_size=400),
    st.integers(0, 400),
    st.sampled_from(["xz", "lzma", "zip", "tar", "zstd", "gz", "bz2"]),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_anywhere_is_an_archive_error(tmp_path: Path, damage: bytes, place: int, kind: str) -> None:
    whole = _whole_archives()[kind]
    archive = tmp_path / "archive"
    archive.write_bytes(whole[:place] + damage + whole[place + len(damage) :])

    with suppress(ArchiveError), open_archive(archive) as members:
        for member in members:
            if member.kind is MemberKind.FILE:
                with member.open() as content:
                    while content.read(1 << 16):
                        pass
