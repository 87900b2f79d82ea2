"""What is wrong with a benchmark descriptor, each mistake on its own, and how a person reads it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from executor.descriptor.toml_text import key_text


class Severity(str, Enum):
    """Whether a descriptor with this finding can be run."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake: where it is, what is wrong, and what to write instead."""

    file: str
    path: tuple[str | int, ...] = ()
    """The way to the key: ("output", "metrics", 0, "pattern"); empty where the file as a whole is meant."""
    problem: str
    fix: str
    severity: Severity = Severity.ERROR
    item: str = ""
    """The `name` or `src` of the list's item that `path` goes through: people do not count from 0."""
    option: str = ""
    """The option that the value came from, "--set ml.args"; empty where it stands in the file."""

    @property
    def key(self) -> str:
        """The way to the key as one text: "output.metrics[0].pattern"."""
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
    """Return the findings as plain text for a terminal: errors first, a count at the end; "" where there are none."""
    if not findings:
        return ""
    blocks = []
    for severity in Severity:
        for finding in findings:
            if finding.severity is severity:
                blocks.append(_block(finding, width=width))
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
    """Wrap each line of `text`; nothing that a person may want to copy is broken inside a word."""
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
