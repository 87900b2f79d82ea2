"""Extracts values from lines without a run."""

from __future__ import annotations

from collections.abc import Sequence

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.metrics.search.extract import Extraction
from bai_agent.metrics.search.patterns import Found, compile_patterns
from bai_agent.metrics.search.reading import Doubt


class Unbounded:
    """A guard without a time limit for searches."""

    careful = False

    def lines(self) -> None: ...
    def search(self, index: int, offset: int) -> None: ...
    def rest(self) -> None: ...
    def resume(self) -> None: ...


class Careful(Unbounded):
    """A guard that makes each line be searched with each pattern separately: the plain way."""

    careful = True


class Notes:
    """Warnings that a user would get."""

    def __init__(self) -> None:
        self.not_numbers: list[tuple[int, str]] = []
        self.doubts: list[tuple[int, Doubt, str, str, str]] = []

    def not_a_number(self, index: int, text: str) -> None:
        self.not_numbers.append((index, text))

    def doubtful(self, index: int, doubt: Doubt, taken: str, whole: str, line: str) -> None:
        self.doubts.append((index, doubt, taken, whole, line))


def extract_metrics(
    data: bytes, chosen: Sequence[Metric], *, fast: bool = True, notes: Notes | None = None, offset: int = 0
) -> list[Found]:
    """Return what is found in `data`, whole lines from `offset` on."""
    extraction = Extraction(
        compile_patterns(chosen, fast=fast),
        findings=notes or Notes(),
        guard=Unbounded() if fast else Careful(),
    )
    return [each for batch in extraction.find(data, offset) for each in batch]
