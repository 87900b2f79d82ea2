from __future__ import annotations

import fcntl
import os
import resource
import threading

import pytest

from bai_agent.files.pipes import read_to_end, write_within


def test_a_pipe_is_read_completely_even_with_a_high_descriptor() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    os.close(reader)
    os.write(writer, b"it runs")
    os.close(writer)

    assert read_to_end(high, timeout_s=30) == b"it runs"
    os.close(high)


def test_reading_from_a_silent_writer_ends_at_the_timeout() -> None:
    reader, writer = os.pipe()

    with pytest.raises(TimeoutError):
        read_to_end(reader, timeout_s=0.01)
    os.close(reader)
    os.close(writer)


def test_a_reader_gets_everything_that_is_written() -> None:
    reader, writer = os.pipe()
    heard: list[bytes] = []
    listener = threading.Thread(target=lambda: heard.append(read_to_end(reader, timeout_s=30)))
    listener.start()

    write_within(writer, bytes(range(256)) * 4096, timeout_s=30)
    os.close(writer)

    listener.join(60)
    os.close(reader)
    assert heard == [bytes(range(256)) * 4096]


def test_writing_to_a_reader_that_does_not_read_ends_at_the_timeout() -> None:
    reader, writer = os.pipe()

    with pytest.raises(TimeoutError):
        write_within(writer, bytes(2**20), timeout_s=0.01)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        write_within(writer, b"x", timeout_s=30)
    os.close(writer)
