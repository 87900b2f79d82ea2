"""Findings about a benchmark descriptor, and their text for the user."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from enum import Enum

from bai_agent.light_dataclass import dataclass
from executor.descriptor.toml_text import key_text


class Severity(str, Enum):
    """Severity of a finding: whether the descriptor can still be run."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake in a descriptor: its place, the problem, and what to write instead."""

    file: str
    path: tuple[str | int, ...] = ()
    """Path to the key, for example ("output", "metrics", 0, "pattern"); empty for the whole file."""
    problem: str
    fix: str
    severity: Severity = Severity.ERROR
    item: str = ""
    """`name` or `src` of the list item on `path`, which is clearer to users than the item's position."""
    option: str = ""
    """Option that set the value, for example "--set ml.args"; empty if the value is in the file."""

    @property
    def key(self) -> str:
        """Path to the key as text, for example "output.metrics[0].pattern"."""
        return key_text(self.path)

    def as_table(self) -> dict[str, object]:
        """Return the finding as JSON values."""
        return {
            "key": self.key,
            "path": list(self.path),
            "option": self.option or None,
            "severity": self.severity.value,
            "problem": self.problem,
            "fix": self.fix,
        }


def has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)


def render_findings(findings: Sequence[Finding], *, width: int = 80) -> str:
    """Return the findings as plain text for a terminal, with errors first and a count at the end; "" if there
    are none."""
    if not findings:
        return ""
    blocks = [
        _block(finding, width=width)
        for severity in Severity
        for finding in findings
        if finding.severity is severity
    ]
    counts = [
        f"{count} {severity.value}{'' if count == 1 else 's'}"
        for severity in Severity
        if (count := sum(finding.severity is severity for finding in findings))
    ]
    return "\n".join([*blocks, ", ".join(counts)]) + "\n"


def _block(finding: Finding, *, width: int) -> str:
    where = finding.option or finding.file
    if finding.path and where != f"--set {finding.key}":
        where += f": {finding.key}"
    if finding.item:
        where += f' (of "{finding.item}")'
    return "\n".join(
        [
            f"{finding.severity.value}: {where}",
            *_indented(finding.problem, first="    ", width=width),
            *_indented(finding.fix, first="    → ", width=width),
            "",
        ]
    )


def _indented(text: str, *, first: str, width: int) -> list[str]:
    """Wrap each line of `text`, but never inside a word, because users may want to copy it."""
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(
            line,
            width=width,
            initial_indent=first if not lines else " " * len(first),
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )
    return lines
