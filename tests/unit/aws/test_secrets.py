from __future__ import annotations

import base64
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.aws.secrets import resolve
from bai_agent.errors import SecretError
from bai_agent.job.record_types import BenchmarkStartEvent, StopEvent, WarningEvent
from bai_agent.job.redaction import Redactor
from bai_agent.runtime.event_log import EventLog


def test_a_reference_to_the_environment_is_resolved() -> None:
    assert resolve("env:HF_TOKEN", environment={"HF_TOKEN": "hf_abc"}) == "hf_abc"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("env:NOWHERE", "NOWHERE .* is not set"),
        ("hf_abcdef", "not a reference to a secret"),
        ("env:", "not a reference"),
        ("vault:x", "not a reference"),
    ],
)
def test_an_unresolvable_reference_reports_the_reason(reference: str, message: str) -> None:
    with pytest.raises(SecretError, match=message):
        resolve(reference, environment={})


def test_known_secrets_never_reach_a_log_or_an_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redactor = Redactor()
    redactor.know(["s3cr3t-value", "s3cr3t-value-longer", "x"])
    logger = logging.getLogger("test_secrets")
    logger.addFilter(redactor)
    with caplog.at_level(logging.INFO):
        logger.info("token %s and %s, x", "s3cr3t-value-longer", "s3cr3t-value")
    events = EventLog(tmp_path / "events.jsonl", redactor=redactor)
    events.add(StopEvent(message="the token s3cr3t-value was wrong"))
    events.close()

    assert caplog.messages == ["token *** and ***, x"]
    assert b"s3cr3t" not in (tmp_path / "events.jsonl").read_bytes()


@pytest.mark.parametrize(
    "secret", ['{"password": "hunter22"}', "-----BEGIN KEY-----\nMIIEvQ\n", "back\\slash"]
)
def test_a_secret_with_quotes_and_newlines_is_redacted_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    redactor = Redactor()
    redactor.know([secret])
    events = EventLog(tmp_path / "events.jsonl", redactor=redactor)

    with caplog.at_level(logging.INFO):
        events.add(BenchmarkStartEvent(pid=1, argv=["train", f"--login={secret}"]))

    (seen,) = events.seen
    assert isinstance(seen, BenchmarkStartEvent)
    assert seen.argv == ["train", "--login=***"]
    assert caplog.messages == [
        "benchmark_started pid=1 argv=['train', '--login=***'] generation=0 output_bytes=None"
    ]


def test_a_secret_in_a_traceback_is_not_logged() -> None:
    redactor = Redactor()
    redactor.know(["s3cr3t-value"])
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(redactor)
    logger = logging.getLogger("test_traceback")
    logger.addHandler(handler)

    try:
        raise ValueError("s3cr3t-value is too short")
    except ValueError:
        logger.exception("it failed")

    assert "ValueError: *** is too short" in written.getvalue()
    assert "s3cr3t" not in written.getvalue()


KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n  kqhkiG9w0BAQ\n}\n-----END KEY-----\n"


def test_each_line_of_a_multiline_secret_is_redacted() -> None:
    redactor = Redactor()
    redactor.know([KEY])

    assert [redactor.redact(line) for line in KEY.splitlines()] == ["***", "***", "  ***", "}", "***"]
    assert redactor.redact(f"a {KEY.rstrip()} b") == "a *** b"
    assert redactor.redact(KEY.replace("\n", "\r\n")).split() == ["***", "***", "***", "}", "***"]


_LONG_SECRET = r"""
import random
from bai_agent.job.redaction import Redactor

lines = ["".join(random.Random(number).choices("abcdefgh0123+/", k=64)) for number in range(5_000)]
redactor = Redactor()
redactor.know(["\n".join(lines)])
assert redactor.redact("an ordinary line of a log\n" * 40_000) == "an ordinary line of a log\n" * 40_000
assert redactor.redact("\n\n".join(lines)) == "\n\n".join(["***"] * 5_000)
assert redactor.redact("\n".join(lines)) == "***"
"""


def test_redacting_a_secret_of_thousands_of_lines_does_not_take_minutes() -> None:
    # It takes a second or two; one pattern of all the lines' forms takes minutes.
    subprocess.run([sys.executable, "-c", _LONG_SECRET], check=True, timeout=60)


@pytest.mark.parametrize("secret", [KEY, 'p"ss/w\\rd ü+%', "plain-s3cret", "line-end-s3cret\n"])
@pytest.mark.parametrize(
    "encode",
    [
        json.dumps,
        lambda secret: json.dumps({"key": secret}, ensure_ascii=False),
        repr,
        quote,
        quote_plus,
        lambda secret: quote(secret, safe=""),
        lambda secret: base64.b64encode(secret.encode()).decode(),
    ],
)
def test_an_encoded_secret_is_redacted(secret: str, encode: Callable[[str], str]) -> None:
    redactor = Redactor()
    redactor.know([secret])

    told = redactor.redact(f"before {encode(secret)} after")

    assert "***" in told
    assert told.startswith("before ")
    assert told.endswith(" after")
    assert encode(secret).strip("\"'{}") not in told


@given(
    secrets=st.lists(
        st.text(alphabet='ab"\\\n %ü', min_size=4, max_size=30).filter(lambda text: len(text.strip()) >= 4)
    ),
    around=st.text(alphabet="xyz", max_size=5),
)
def test_no_secret_survives_redaction_whole(secrets: list[str], around: str) -> None:
    redactor = Redactor()
    redactor.know(secrets)

    for secret in secrets:
        for form in (secret, json.dumps(secret)[1:-1]):
            assert form not in redactor.redact(f"{around}{form}{around}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pip: https://me:s3cr3t@index/simple failed", "pip: https://***@index/simple failed"),
        ("https://ghp_token@github.com/a.git", "https://***@github.com/a.git"),
        (
            "GET https://b/k?X-Amz-Date=1&X-Amz-Signature=abc123&x=1",
            "GET https://b/k?X-Amz-Date=1&X-Amz-Signature=***&x=1",
        ),
        ("mail me@example.com about s3://bucket/a@b", "mail me@example.com about s3://bucket/a@b"),
    ],
)
def test_credentials_in_an_address_are_redacted(text: str, shown: str) -> None:
    assert Redactor().redact(text) == shown


def test_keys_of_a_result_are_redacted_too() -> None:
    redactor = Redactor()
    redactor.know(["s3cr3t-value"])

    told = redactor.redact_all({"per_metric": {"s3cr3t-value": 1}, "warnings": ("s3cr3t-value", None)})

    assert told == {"per_metric": {"***": 1}, "warnings": ["***", None]}


def test_a_secret_equal_to_a_key_of_a_result_does_not_redact_that_key() -> None:
    redactor = Redactor()
    redactor.know(["metrics", "benchmark", "records"])

    told = redactor.redact_all({"metrics": {"records": {"benchmark": 1}}, "benchmark": 2}, own_levels=2)

    assert told == {"metrics": {"records": {"***": 1}}, "benchmark": 2}


def test_a_secret_equal_to_a_key_of_an_event_does_not_redact_that_key(tmp_path: Path) -> None:
    redactor = Redactor()
    redactor.know(["message"])
    events = EventLog(tmp_path / "events.jsonl", redactor=redactor)

    events.add(WarningEvent(message="a message"))

    (seen,) = events.seen
    assert isinstance(seen, WarningEvent)
    assert seen.message == "a ***"


def test_a_log_call_with_wrong_arguments_is_still_logged() -> None:
    redactor = Redactor()
    redactor.know(["s3cr3t-value"])
    record = logging.LogRecord("library", logging.INFO, "", 0, "%d of %d", ("s3cr3t-value",), None)

    assert redactor.filter(record)

    assert record.getMessage() == "%d of %d ('***',)"
