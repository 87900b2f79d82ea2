from __future__ import annotations

import pytest

from bai_agent.job.outcome import ExitCode, Outcome, Status


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_status_an_exit_code_and_a_sentence(outcome: Outcome) -> None:
    assert outcome.exit_code in ExitCode
    assert outcome.status in Status
    assert outcome.sentence.endswith(".")


def test_only_the_outcome_succeeded_has_exit_code_0() -> None:
    assert [each for each in Outcome if each.exit_code == 0] == [Outcome.SUCCEEDED]
    assert [each for each in Outcome if each.status is Status.SUCCEEDED] == [Outcome.SUCCEEDED]


def test_the_documentation_names_every_outcome(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs/design.md").read_text()

    assert [each.value for each in Outcome if each.value not in text] == []
