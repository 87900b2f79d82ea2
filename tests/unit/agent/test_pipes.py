from __future__ import annotations

import fcntl
import os

import pytest

from bai_agent.pipes import read_to_end


def test_all_that_was_said_is_heard_even_through_a_high_descriptor() -> None:
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    os.close(reader)
    os.write(writer, b"it runs")
    os.close(writer)

    assert read_to_end(high, seconds=30) == b"it runs"
    os.close(high)


def test_who_says_nothing_is_not_waited_for_for_ever() -> None:
    reader, writer = os.pipe()

    with pytest.raises(TimeoutError):
        read_to_end(reader, seconds=0.01)
    os.close(reader)
    os.close(writer)
