from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from bai_agent.events import EventLog
from bai_agent.secrets import Redactor, SecretError, resolve


def test_a_reference_to_the_environment_is_resolved() -> None:
    assert resolve("env:HF_TOKEN", environment={"HF_TOKEN": "hf_abc"}) == "hf_abc"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("env:NOWHERE", "NOWHERE .* is not set"),
        ("hf_abcdef", "no reference to a secret"),
        ("env:", "no reference"),
        ("vault:x", "no reference"),
    ],
)
def test_what_cannot_be_resolved_says_why(reference: str, message: str) -> None:
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
    events = EventLog(tmp_path / "events.jsonl", redact=redactor.redact)
    events.add("stop", message="the token s3cr3t-value was wrong")
    events.close()

    assert caplog.messages == ["token *** and ***, x"]
    assert b"s3cr3t" not in (tmp_path / "events.jsonl").read_bytes()


@pytest.mark.parametrize(
    "secret", ['{"password": "hunter22"}', "-----BEGIN KEY-----\nMIIEvQ\n", "back\\slash"]
)
def test_a_secret_with_quotes_and_line_ends_is_known_in_events_and_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    redactor = Redactor()
    redactor.know([secret])
    events = EventLog(tmp_path / "events.jsonl", redact=redactor.redact)

    with caplog.at_level(logging.INFO):
        events.add("benchmark_started", pid=1, argv=("train", f"--login={secret}"))

    assert events.seen[-1]["argv"] == ["train", "--login=***"]
    assert caplog.messages == ["benchmark_started pid=1 argv=['train', '--login=***']"]


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
