"""The steps of a proof and their answers, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from on_aws.account import Account

USD_AN_HOUR = {"t3.small": 0.04, "c7i.large": 0.13, "g4dn.xlarge": 0.80}
"""Bounds for a machine with its volume and address, on demand, above the prices of the usual regions."""


class Answer(Enum):
    """What an account said to a step."""

    HOLDS = "holds"
    DIFFERS = "DOES NOT HOLD"
    UNANSWERED = "not answered here"


class DiffersError(Exception):
    """The account does not do what the code assumes; the sentence says what it does instead."""


class UnansweredError(Exception):
    """The account cannot answer; the sentence is the reason."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that is proved."""

    name: str
    checks: str
    assumption: str
    """Place in the code that relies on it: file · name."""
    run: Callable[[Account], str]
    """Returns what was seen. Raises DiffersError, UnansweredError."""
    machines: int = 0
    """Most machines at a time."""
    type: str = "t3.small"
    minutes: int = 10
    """Longest time; after it the step has failed."""
    needs_real: str = ""
    """Why an emulated account does not answer it; empty if it does."""
    runs_anyway: bool = False
    """Whether it is tried there all the same, for the sake of its own code."""
    gpu: bool = False
    """Whether it is tried with --gpu only."""

    @property
    def usd(self) -> float:
        """Most that its machines cost."""
        return self.machines * self.minutes / 60 * USD_AN_HOUR[self.type]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer to a step."""

    step: Step
    answer: Answer
    seen: str
    seconds: float = 0.0


def find(step: Step, account: Account, clock: Callable[[], float]) -> Finding:
    """Try a step. Any error but an answer of the account's is a step that does not hold."""
    began = clock()
    emulated = account.emulated and step.needs_real
    if emulated and not step.runs_anyway:
        return Finding(step=step, answer=Answer.UNANSWERED, seen=step.needs_real)
    try:
        answer, seen = Answer.HOLDS, step.run(account)
        if emulated:
            answer, seen = Answer.UNANSWERED, f"{step.needs_real}; tried here, it went through: {seen}"
    except UnansweredError as reason:
        answer, seen = Answer.UNANSWERED, str(reason)
    except DiffersError as difference:
        answer, seen = Answer.DIFFERS, str(difference)
    except Exception as error:
        answer, seen = Answer.DIFFERS, f"{type(error).__name__}: {error}"
    return Finding(step=step, answer=answer, seen=" ".join(seen.split()), seconds=clock() - began)


def expect(condition: object, otherwise: str) -> None:
    """Raise DiffersError unless `condition` holds."""
    if not condition:
        raise DiffersError(otherwise)


def plan_text(steps: Iterable[Step]) -> str:
    """Return what would be done, and what that costs at most."""
    chosen = list(steps)
    lines = []
    for each in chosen:
        machines = (
            f"{each.machines} × {each.type}, at most {each.minutes} min" if each.machines else "no machine"
        )
        lines += [
            f"{each.name:<12} {each.usd:5.2f} USD  {each.checks}",
            f"{'':<24} {each.assumption}; {machines}",
        ]
    total = sum(each.usd for each in chosen)
    return "\n".join([*lines, f"{'together':<12} {total:5.2f} USD if each step takes its longest"])


def table_text(findings: Sequence[Finding]) -> str:
    """Return the answers, one step a paragraph."""
    lines = []
    for each in findings:
        minutes = f"{each.seconds / 60:.1f} min" if each.seconds else ""
        lines += [
            f"{each.step.name:<12} {each.answer.value:<18} {minutes:>8}  {each.step.checks}",
            f"{'':<12} {each.step.assumption}",
            f"{'':<12} {each.seen}",
        ]
    counts = {answer: sum(each.answer is answer for each in findings) for answer in Answer}
    return "\n".join([*lines, ", ".join(f"{count} {answer.value}" for answer, count in counts.items())])
