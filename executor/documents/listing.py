"""`bai list`: a table with a row for each job."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len

from bai_agent.job.job_headlines import headline_title
from bai_agent.job.record_types import HeadlineValue
from bai_agent.job.run_directory import now_ms
from executor.documents.document import Column, Phrase, Table, Tone
from executor.documents.text import plain_text, shortened
from executor.jobs.job_list import ListedJob
from executor.planning.request import MATRIX
from executor.quantities import amount, seconds
from executor.records.job_status import DIED, JobStatus

_TONES: dict[str, Tone] = {
    "SUCCEEDED": "good",
    "RUNNING": "live",
    "INITIALIZING": "live",
    "PENDING": "live",
    "PARKED": "caution",
    "CANCELED": "caution",
}
_HEADLINES = 2
_HEADLINE_WIDTH = (12, 34)
"""Smallest and largest width of the column with headlines (characters)."""


def status_phrase(status: JobStatus) -> Phrase:
    """Return the status of a job as coloured text."""
    word = "AGENT DIED" if status.status == DIED else status.status
    return Phrase(word, _TONES.get(status.status, "bad"))


def jobs_table(jobs: Sequence[ListedJob]) -> Table:
    """Return a table with a row per job. On a narrow screen, the least important columns are dropped."""
    # The column `where` is shown only if a job runs on a machine other than this one.
    everywhere = any(each.status.where not in ("", "local") for each in jobs)
    chosen = [each for each in _COLUMNS if each[0].name != "where" or everywhere]
    return Table([column for column, _ in chosen], [[phrase(job) for _, phrase in chosen] for job in jobs])


def age(span: float) -> str:
    """Return a time span in a single unit, for example "5 min" or "3 d". span: seconds."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if span >= size * (2 if unit == "d" else 1):
            return f"{span / size:.0f} {unit}"
    return f"{max(0.0, span):.0f} s"


def _age(job: ListedJob) -> Phrase:
    return Phrase(age((now_ms() - job.status.started) / 1000) if job.status.started else "")


def _duration(job: ListedJob) -> Phrase:
    span = job.status.seconds if job.status.status != DIED else None
    return Phrase(seconds(span) if span is not None else "")


def _parameters(job: ListedJob) -> Phrase:
    # The value of `--set ml.args=…` is shown together with the job's arguments.
    values = [f"{key}={value}" for key, value in job.set.items() if key not in ("ml.args", MATRIX)]
    arms = [", ".join(job.arms)] if job.arms else []
    return Phrase(" ".join([*values, *arms, *map(shlex.quote, job.arguments)]), "soft")


def _headlines(headlines: Mapping[str, HeadlineValue], bounds: Mapping[str, float]) -> str:
    """Return as many of a job's headlines as fit without truncating a number, but at least one. If necessary,
    the name of the headline is shortened in the middle."""
    least, most = _HEADLINE_WIDTH
    pairs = [
        (
            plain_text(headline_title(name, each)),
            amount(each.value, plain_text(each.units), floor=bounds.get(name)),
        )
        for name, each in list(headlines.items())[:_HEADLINES]
    ]
    whole = ", ".join(f"{name} {number}" for name, number in pairs)
    if not pairs or cell_len(whole) <= most:
        return whole
    name, number = pairs[0]
    return f"{shortened(name, max(least, most - cell_len(number) - 1))} {number}"


_COLUMNS: Sequence[tuple[Column, Callable[[ListedJob], Phrase]]] = (
    (Column("job", number=False, wraps=True), lambda job: Phrase(job.status.job_id)),
    (Column("name", number=False, drops=7, cut_to=8, most=30), lambda job: Phrase(job.name, "soft")),
    (Column("where", number=False, drops=1), lambda job: Phrase(job.status.where)),
    (Column("status", number=False), lambda job: status_phrase(job.status)),
    (
        Column("outcome", number=False, drops=2),
        lambda job: Phrase(job.status.outcome or job.status.phase or ""),
    ),
    (
        Column("headline", number=False, drops=4, cut_to=_HEADLINE_WIDTH[0], most=_HEADLINE_WIDTH[1]),
        lambda job: Phrase(_headlines(job.headlines, job.bounds)),
    ),
    (Column("parameters", number=False, drops=6, cut_to=12, most=44), _parameters),
    (Column("age", drops=3, pointed=False), _age),
    (Column("duration", drops=5, pointed=False), _duration),
    (
        Column("cost", drops=8, pointed=False),
        lambda job: Phrase(f"{job.dollars:,.2f} USD" if job.dollars is not None else ""),
    ),
)
