"""The steps of a proof, their costs and their answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from on_aws.account import Account, Said
from on_aws.proof import (
    USD_AN_HOUR,
    Answer,
    DiffersError,
    Finding,
    Step,
    UnansweredError,
    find,
    plan_text,
    table_text,
)
from on_aws.steps import FIRST, LAST, STEPS

ROOT = Path(__file__).parents[3]


class _Account:
    def __init__(self, *, emulated: bool = False) -> None:
        self.emulated = emulated


def answered(run: Callable[[Any], str], *, emulated: bool = False, **more: Any) -> Finding:
    account: Any = _Account(emulated=emulated)
    times = iter((10.0, 12.5))
    return find(
        Step(name="one", checks="it works", assumption="here", run=run, **more), account, lambda: next(times)
    )


def raising(error: Exception) -> Callable[[Any], str]:
    def run(_: Any) -> str:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "answer", "seen"),
    [
        (DiffersError("it\ndoes  not"), Answer.DIFFERS, "it does not"),
        (UnansweredError("not allowed"), Answer.UNANSWERED, "not allowed"),
        (KeyError("gone"), Answer.DIFFERS, "KeyError: 'gone'"),
    ],
)
def test_an_error_in_a_step_means_that_it_does_not_hold_or_is_unanswered(
    error: Exception, answer: Answer, seen: str
) -> None:
    found = answered(raising(error))

    assert (found.answer, found.seen, found.seconds) == (answer, seen, 2.5)


@pytest.mark.parametrize(
    "said",
    [
        "VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 1",
        "decreases account's UnreservedConcurrentExecution below its minimum value of [10]",
    ],
)
def test_a_step_that_the_accounts_quota_prevents_counts_as_unanswered(said: str) -> None:
    account: Any = SimpleNamespace(bai=lambda *arguments, minutes: Said(2, "", said))

    with pytest.raises(UnansweredError, match="the account does not allow it"):
        Account.ok(account, "watcher", "setup", "--watcher")


def test_an_emulated_account_proves_nothing_that_needs_a_real_one() -> None:
    tried = []

    def run(_: Any) -> str:
        tried.append(1)
        return "seen"

    skipped = answered(run, emulated=True, needs_real="there is no GPU")
    assert (skipped.answer, skipped.seen, tried) == (Answer.UNANSWERED, "there is no GPU", [])

    anyway = answered(run, emulated=True, needs_real="EC2's form", runs_anyway=True)
    assert (anyway.answer, tried) == (Answer.UNANSWERED, [1])
    assert anyway.seen == "EC2's form; tried here, it went through: seen"

    broken = answered(raising(DiffersError("no")), emulated=True, needs_real="EC2's form", runs_anyway=True)
    assert broken.answer is Answer.DIFFERS

    assert answered(run, needs_real="there is no GPU").answer is Answer.HOLDS


def test_a_step_costs_its_machines_for_its_longest_time() -> None:
    step = Step(name="one", checks="", assumption="", run=str, machines=2, type="c7i.large", minutes=30)

    assert step.usd == USD_AN_HOUR["c7i.large"]
    assert plan_text([step, step]).endswith(f"{2 * step.usd:5.2f} USD if each step takes its longest")


def test_the_cost_of_all_steps_is_within_the_stated_bound() -> None:
    assert sum(each.usd for each in (*STEPS, *LAST) if not each.gpu) < 1
    assert 0 < sum(each.usd for each in (*STEPS, *LAST) if each.gpu) < 1


def test_each_step_names_existing_code() -> None:
    names = [each.name for each in (*FIRST, *STEPS, *LAST)]
    assert len(set(names)) == len(names)
    for step in (*FIRST, *STEPS, *LAST):
        for named in step.assumption.split(", "):
            path, _, word = named.partition(" · ")
            if "/" in path:
                assert (ROOT / path).is_file(), named
                assert word in (ROOT / path).read_text(), named


def test_the_table_has_each_step_with_its_result() -> None:
    holds = answered(lambda _: "two machines")
    open_ = answered(raising(UnansweredError("not allowed")))

    lines = table_text([holds, open_]).splitlines()

    assert lines[0].split() == ["one", "holds", "0.0", "min", "it", "works"]
    assert [each.strip() for each in lines[1:3]] == ["here", "two machines"]
    assert lines[3].startswith("one          not answered here")
    assert lines[-1] == "1 holds, 0 DOES NOT HOLD, 1 not answered here"
