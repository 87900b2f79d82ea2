"""Jobs as a table that fits the screen: where it is narrow, the columns of least interest go first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from bai_agent.job.job_headlines import headline_title
from bai_agent.job.record_types import HeadlineValue
from bai_agent.job.run_directory import now_ms
from executor.jobs.jobs import ListedJob
from executor.quantities import quantity, seconds
from executor.records.job_status import DIED
from executor.view.text import plain_text, shortened

_WANTED = ("job", "status", "outcome", "age", "headline", "duration", "parameters", "name", "cost")
"""The first ones stay longest."""
_ORDER = ("job", "name", "where", "status", "outcome", "headline", "parameters", "age", "duration", "cost")
_RIGHT = ("age", "duration", "cost")
_WIDEST = {"headline": 34, "parameters": 44, "name": 30}
_LEAST = {"headline": 12, "parameters": 12, "name": 8}
"""Narrower, they say nothing."""
_HEADLINES = 2
_GAP = 2


def job_table(
    jobs: Sequence[ListedJob], *, width: int, status_style: dict[str, str], unicode: bool = True
) -> Table:
    """Return `jobs` as a table of at most `width` columns."""
    now = now_ms()
    cells = {name: [_cell(name, job, now) for job in jobs] for name in _ORDER}
    chosen = _chosen(cells, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for name in (name for name in _ORDER if name in chosen):
        table.add_column(
            name,
            # An id is there to be copied: one that is wider than the screen goes on in the next line.
            no_wrap=name != "job",
            overflow="fold" if name == "job" else "ellipsis" if unicode else "crop",
            justify="right" if name in _RIGHT else "left",
            width=chosen[name],
        )
    for index, job in enumerate(jobs):
        row = [
            Text(cells[name][index], style=_style(name, job, status_style))
            for name in _ORDER
            if name in chosen
        ]
        table.add_row(*row)
    return table


def _chosen(cells: dict[str, list[str]], width: int) -> dict[str, int]:
    """Return the columns that there is room for, with their widths."""
    full = {name: max([cell_len(name), *map(cell_len, column)]) for name, column in cells.items()}
    status = full["status"]
    chosen = {"job": min(full["job"], max(8, width - status - _GAP)), "status": status}
    left = width - sum(chosen.values()) - _GAP
    # Where all are here, nobody asks where; else that comes before all that may go.
    elsewhere = any(where not in ("", "local") for where in cells["where"])
    for name in (*(("where",) if elsewhere else ()), *_WANTED[2:]):
        if not any(cells[name]):
            continue
        wanted = min(full[name], _WIDEST.get(name, full[name]))
        taken = wanted if wanted + _GAP <= left else left - _GAP
        if taken < min(wanted, _LEAST.get(name, wanted)):
            break
        chosen[name] = taken
        left -= taken + _GAP
    return chosen


def _cell(name: str, job: ListedJob, now: int) -> str:
    status = job.status
    match name:
        case "job":
            return plain_text(status.job_id)
        case "name":
            return plain_text(job.name)
        case "where":
            return status.where
        case "status":
            return "AGENT DIED" if status.status == DIED else plain_text(status.status)
        case "outcome":
            return plain_text(status.outcome or status.phase or "")
        case "headline":
            return _headlines(job.headlines, job.bounds)
        case "parameters":
            # What `--set ml.args=…` put there stands in the arguments.
            values = [f"{key}={value}" for key, value in job.set.items() if key != "ml.args"]
            return plain_text(" ".join([*values, *map(shlex.quote, job.arguments)]))
        case "age":
            return age((now - status.started) / 1000) if status.started else ""
        case "duration":
            span = status.seconds if status.status != DIED else None
            return seconds(span) if span is not None else ""
        case _:
            return f"{job.dollars:,.2f} USD" if job.dollars is not None else ""


def _headlines(headlines: Mapping[str, HeadlineValue], bounds: Mapping[str, float]) -> str:
    """Return the first headlines in so many columns that no number is cut: one alone, and its name without its middle, if need be."""
    pairs = [
        (
            plain_text(headline_title(name, each)),
            " ".join(quantity(each.value, plain_text(each.units), floor=bounds.get(name))).strip(),
        )
        for name, each in list(headlines.items())[:_HEADLINES]
    ]
    whole = ", ".join(f"{name} {number}" for name, number in pairs)
    if not pairs or cell_len(whole) <= _WIDEST["headline"]:
        return whole
    name, number = pairs[0]
    room = max(_LEAST["headline"], _WIDEST["headline"] - cell_len(number) - 1)
    return f"{shortened(name, room)} {number}"


def age(span: float) -> str:
    """Return how long ago something was, in one unit: "5 min", "3 d"."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if span >= size * (2 if unit == "d" else 1):
            return f"{span / size:.0f} {unit}"
    return f"{max(0.0, span):.0f} s"


def _style(name: str, job: ListedJob, status_style: dict[str, str]) -> str:
    if name == "status":
        return status_style.get(job.status.status, "red")
    return {"job": "bold", "parameters": "dim", "name": "dim"}.get(name, "default")
