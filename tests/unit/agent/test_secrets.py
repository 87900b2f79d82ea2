from __future__ import annotations

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
