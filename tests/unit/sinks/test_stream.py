"""A growing file becomes a sequence of objects that reads like the file, even if the uploader is killed anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from failures import KilledError
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.sinks.job_store.stream import StreamUpload, UploadOffset

FULL = 64


class Bucket:
    """Where the objects land, and what of the uploader survives its death."""

    def __init__(self, folder: Path, *, whole_lines: bool = False) -> None:
        self.record = JobRecord(DirectoryStore(folder / "store"), "job")
        self.path = folder / "file"
        self.path.touch()
        self.reached = UploadOffset()
        self.before_put: Callable[[], None] = lambda: None
        self.before_save: Callable[[], None] = lambda: None
        self._whole_lines = whole_lines

    def uploader(self) -> StreamUpload:
        return StreamUpload(
            self.path,
            reached=self.reached,
            put=self._put,
            save=self._save,
            whole_lines=self._whole_lines,
            object_bytes=FULL,
        )

    def append(self, content: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(content)

    def read(self) -> bytes:
        whole = b""
        while piece := self.record.node().read("log", len(whole)):
            whole += piece
        return whole

    def _put(self, start: int, content: bytes) -> None:
        self.before_put()
        self.record.store.put(self.record.node().key(f"log/{start:020}"), content)

    def _save(self, reached: UploadOffset) -> None:
        self.before_save()
        self.reached = reached


def send_all(uploader: StreamUpload) -> None:
    while uploader.send():
        continue


def test_output_is_appended_to_the_last_object_until_it_is_full(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    uploader = bucket.uploader()
    for size in (10, 30, 100, 3):
        bucket.append(os.urandom(size))
        send_all(uploader)
        assert bucket.read() == bucket.path.read_bytes()

    objects = bucket.record.store.find(bucket.record.node().key("log/"))
    assert [each.size for each in objects] == [64, 64, 15]
    assert uploader.pending() == 0


@given(
    pieces=st.lists(st.binary(max_size=150), max_size=12),
    deaths=st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=8),
    whole_lines=st.booleans(),
)
def test_a_stream_killed_at_any_write_reads_like_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[bytes],
    deaths: list[tuple[bool, int]],
    whole_lines: bool,
) -> None:
    bucket = Bucket(tmp_path_factory.mktemp("stream"), whole_lines=whole_lines)
    for piece in (*pieces, b"\n"):
        bucket.append(piece)
        at_put, steps = deaths.pop() if deaths else (False, 99)
        countdown = iter(range(steps))

        def die(countdown: object = countdown) -> None:
            if next(countdown, None) is None:  # type: ignore[call-overload]
                raise KilledError

        bucket.before_put, bucket.before_save = (die, lambda: None) if at_put else (lambda: None, die)
        try:
            with closing(bucket.uploader()) as uploader:
                send_all(uploader)
        except KilledError:
            continue
        if whole_lines and len(bucket.path.read_bytes()) < FULL:
            content = bucket.path.read_bytes()
            assert bucket.read() == content[: content.rfind(b"\n") + 1]
    bucket.before_put = bucket.before_save = lambda: None
    with closing(bucket.uploader()) as uploader:
        send_all(uploader)

    assert bucket.read() == bucket.path.read_bytes()


def test_records_are_never_split_between_objects(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, whole_lines=True)
    uploader = bucket.uploader()
    bucket.append(b"".join(b'{"seq": %d}\n' % number for number in range(40)) + b'{"half')
    send_all(uploader)

    for each in bucket.record.store.find(bucket.record.node().key("log/")):
        assert bucket.record.store.get(each.key).endswith(b"}\n")
    assert bucket.read() == bucket.path.read_bytes().removesuffix(b'{"half')
    assert uploader.pending() == len(b'{"half')


def test_a_truncated_file_continues_its_stream(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    uploader = bucket.uploader()
    bucket.append(b"a" * 100)
    send_all(uploader)
    os.truncate(bucket.path, 0)
    assert uploader.pending() == 1
    bucket.append(b"b" * 30)

    send_all(uploader)
    bucket.append(b"c" * 90)
    send_all(bucket.uploader())

    assert bucket.read() == b"a" * 100 + b"b" * 30 + b"c" * 90
    assert bucket.reached.lost == 0


def test_bytes_overwritten_before_they_were_sent_are_counted(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    uploader = bucket.uploader()
    bucket.append(b"a" * 50)
    send_all(uploader)
    bucket.append(b"x" * 5)
    bucket.before_put = lambda: (_ for _ in ()).throw(KilledError)
    with pytest.raises(KilledError):
        uploader.send()
    bucket.before_put = lambda: None
    os.truncate(bucket.path, 0)

    send_all(uploader)

    assert uploader.reached.lost == 5


def test_a_deleted_file_is_read_to_its_end(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.append(b"first")
    uploader = bucket.uploader()
    send_all(uploader)
    with bucket.path.open("ab") as file:
        bucket.path.unlink()
        file.write(b" second")
    send_all(uploader)

    assert bucket.read() == b"first second"
