"""How the end of one extractor decides on the next."""

from __future__ import annotations

import signal

import pytest

from bai_agent.run.extractor import BLAME, CAREFUL, next_flags

TIMED_OUT = -signal.SIGVTALRM


@pytest.mark.parametrize(
    ("returncode", "flags", "following"),
    [
        (TIMED_OUT, [], [CAREFUL]),
        (TIMED_OUT, [CAREFUL], [CAREFUL, BLAME]),
        (TIMED_OUT, [CAREFUL, BLAME], [CAREFUL, BLAME]),
        (-signal.SIGKILL, [CAREFUL], []),
        (-signal.SIGKILL, [CAREFUL, BLAME], []),
        (1, [], []),
        (0, [CAREFUL], []),
    ],
)
def test_only_an_extractor_ended_by_its_timer_is_restarted_with_more_guards(
    returncode: int, flags: list[str], following: list[str]
) -> None:
    assert next_flags(returncode, flags) == following
