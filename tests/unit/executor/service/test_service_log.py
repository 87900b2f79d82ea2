"""Each line of the service's log is one line, and says about which action it is."""

from __future__ import annotations

import json
import logging

import pytest

from executor.service.service_log import about_action, start_log

pytestmark = pytest.mark.usefixtures("log_as_before")


def test_a_json_log_line_has_the_action_id(capsys: pytest.CaptureFixture[str]) -> None:
    start_log(level="INFO", as_json=True)

    with about_action("a-1"):
        logging.getLogger("executor.service.x").info("launching %s", "it")
    logging.getLogger("executor.service.x").info("idle")
    logging.getLogger("kafka").info("not ours")

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["action_id"], each["message"]) for each in lines] == [
        ("a-1", "launching it"),
        (None, "idle"),
    ]


def test_foreign_text_cannot_begin_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    start_log(level="INFO", as_json=False)

    with about_action("a\n2026-01-01 INFO forged"):
        logging.getLogger("executor.service.x").info("refused: %s", "x\n2026-01-01 INFO forged")

    assert len(capsys.readouterr().err.splitlines()) == 1
