"""Messages and records name a source without its secrets, and tell two sources apart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bai_agent.errors import PullError
from bai_agent.job.source_names import source_name
from bai_agent.pull.problems import NoSpaceError, disk_problem


@pytest.mark.parametrize("src", ["s3://bucket/a b?c#d", "https://host:8443/a%20b"])
def test_what_holds_no_secret_is_shown_as_it_is(src: str) -> None:
    assert source_name(src) == src


def test_a_file_of_this_machine_is_shown_by_its_path() -> None:
    assert source_name("file:///my%20data/a?b#c%25") == "/my data/a?b#c%"


def test_passwords_and_queries_are_not_shown() -> None:
    name = source_name("https://user:secret@host/f?token=hidden")
    assert name.startswith("https://host/f?…")
    assert "secret" not in name
    assert "hidden" not in name


def test_addresses_that_differ_in_their_query_differ_in_their_name() -> None:
    assert source_name("https://host/get?id=1") != source_name("https://host/get?id=2")


def test_an_address_that_was_signed_again_keeps_its_name() -> None:
    first = "https://b.s3.amazonaws.com/k?versionId=7&X-Amz-Date=1&X-Amz-Signature=a"
    again = "https://b.s3.amazonaws.com/k?versionId=7&X-Amz-Date=2&X-Amz-Signature=b"
    assert source_name(first) == source_name(again)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, NoSpaceError, "ran full"),
        (errno.EDQUOT, NoSpaceError, "ran full"),
        (errno.EROFS, PullError, "give the job's user the right"),
        (errno.EIO, PullError, "Input/output error"),
    ],
)
def test_what_a_disk_answers_is_said_with_what_to_do(number: int, kind: type[PullError], words: str) -> None:
    problem = disk_problem("s3://b/k", OSError(number, os.strerror(number), "/data/k"), root=Path("/data"))

    assert type(problem) is kind
    assert str(problem).startswith("s3://b/k: ")
    assert words in str(problem)
