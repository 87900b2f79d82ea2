"""Cron expressions of `info.scheduling`, as Kubernetes takes them."""

from __future__ import annotations

import pytest

from executor.descriptor.cron import cron_problem


@pytest.mark.parametrize(
    "text", ["* * * * *", "*/5 0-23/2 1,15 jan-mar MON-fri", "0 3 ? * 7", "@daily", "59 23 31 12 sun"]
)
def test_a_cron_expression(text: str) -> None:
    assert cron_problem(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "every day",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * foo *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "1,, * * * *",
        "@never",
        "² * * * *",
    ],
)
def test_no_cron_expression(text: str) -> None:
    assert cron_problem(text)
