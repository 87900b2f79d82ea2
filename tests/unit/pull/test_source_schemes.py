"""What a source's address alone determines: its scheme, its local path, and how it is shown without secrets."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.errors import NoSpaceError, PullError
from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.schema.source_schemes import SCHEMES, file_path, grants_access, source_name
from bai_agent.pull.bring import open_origin
from bai_agent.pull.landing import disk_problem
from bai_agent.pull.progress import PullWatch


@pytest.mark.parametrize("name", SCHEMES)
def test_every_source_scheme_can_be_opened(name: str) -> None:
    src = f"{name}://{'' if name == 'file' else 'host'}/train.csv"

    assert SCHEMES[name].mistake(src) is None
    origin = open_origin(Source(src=src, path="train.csv", region="eu-west-1", anonymous=True), PullWatch())

    assert callable(origin.survey)
    assert callable(origin.fetch)


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PullError, match=r"^ftp://host/f: must be one of s3://, https://, http://, file://$"):
        open_origin(Source(src="ftp://user:secret@host/f", path="f"), PullWatch())


def test_the_code_of_a_source_scheme_is_imported_only_when_needed() -> None:
    program = "import sys, bai_agent.phases.run, bai_agent.pull.bring; print(*(name for name in sys.modules if name.startswith('bai_agent.pull.')))"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    loaded = done.stdout.split()
    assert "bai_agent.pull.bring" in loaded
    assert not {
        f"bai_agent.pull.{scheme.origin.partition(':')[0]}" for scheme in SCHEMES.values()
    }.intersection(loaded)


@pytest.mark.parametrize(
    ("src", "path"),
    [
        ("file:///my%20data/a?b#c%25", "/my data/a?b#c%"),
        ("FILE://localhost/train.csv", "/train.csv"),
        ("file:///%ff", os.fsdecode(b"/\xff")),
        ("file://localhosts/train.csv", None),
        ("file:train.csv", None),
        ("s3://bucket/train.csv", None),
    ],
)
def test_only_a_file_address_has_a_local_path(src: str, path: str | None) -> None:
    assert file_path(src) == (Path(path) if path is not None else None)


@pytest.mark.parametrize(
    "src", ["https://user:secret@host/f", "https://host/f?a=1&X-Amz-Signature=a", "https://host/f?SIG=a"]
)
def test_an_address_with_a_password_or_signature_counts_as_secret(src: str) -> None:
    assert grants_access(src)


@pytest.mark.parametrize("src", ["https://user@host/f?version=2", "s3://bucket[1/key", "data/train.csv"])
def test_an_address_without_a_password_or_signature_does_not_count_as_secret(src: str) -> None:
    assert not grants_access(src)


@pytest.mark.parametrize("src", ["s3://bucket/a b?c#d", "https://host:8443/a%20b"])
def test_text_without_a_secret_is_shown_unchanged(src: str) -> None:
    assert source_name(src) == src


def test_a_local_file_is_shown_by_its_path() -> None:
    assert source_name("file:///my%20data/a?b#c%25") == "/my data/a?b#c%"


@pytest.mark.parametrize("scheme", ["https", "gs"])
def test_passwords_and_queries_are_not_shown(scheme: str) -> None:
    name = source_name(f"{scheme}://user:secret@host/f?token=hidden")
    assert name.startswith(f"{scheme}://host/f?…")
    assert "secret" not in name
    assert "hidden" not in name


def test_addresses_with_different_queries_are_shown_differently() -> None:
    assert source_name("https://host/get?id=1") != source_name("https://host/get?id=2")


def test_an_address_with_a_new_signature_is_shown_the_same() -> None:
    first = "https://b.s3.amazonaws.com/k?versionId=7&X-Amz-Date=1&X-Amz-Signature=a"
    again = "https://b.s3.amazonaws.com/k?versionId=7&X-Amz-Date=2&X-Amz-Signature=b"
    assert source_name(first) == source_name(again)


@given(
    st.sampled_from(["http", "https", "gs"]),
    st.text(st.sampled_from("ab:@/?#&=…%"), max_size=20),
)
def test_redacting_a_source_address_twice_changes_nothing(scheme: str, rest: str) -> None:
    name = source_name(f"{scheme}://user:secret@host/{rest}")
    assert source_name(name) == name


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, NoSpaceError, "ran full"),
        (errno.EDQUOT, NoSpaceError, "ran full"),
        (errno.EROFS, PullError, "give the job's user the right to write"),
        (errno.EIO, PullError, "Input/output error"),
    ],
)
def test_a_disk_error_is_reported_with_advice(number: int, kind: type[PullError], words: str) -> None:
    problem = disk_problem("s3://b/k", OSError(number, os.strerror(number), "/data/k"), root=Path("/data"))

    assert type(problem) is kind
    assert str(problem).startswith("s3://b/k: ")
    assert words in str(problem)
