"""Documents about a group of jobs: its jobs, its combinations, and a plot of the headline over a key of the
matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from executor.documents.document import (
    Block,
    Column,
    Fact,
    Facts,
    Notes,
    Paragraph,
    Phrase,
    ScalingLine,
    ScalingPlot,
    Table,
    Tone,
    quantity_phrase,
)
from executor.documents.listing import status_phrase
from executor.jobs.group_comparison import (
    NOT_STARTED,
    CombinationRow,
    GroupComparison,
    GroupJob,
    GroupView,
    number_in,
)
from executor.quantities import amount, quantity

_WIDTH, _LEFT, _RIGHT = 640, 72, 120
_HEIGHT, _TOP, _BOTTOM = 260, 18, 226
_LINES = 8
"""Largest number of lines in a plot that readers can distinguish."""
_METHOD = (
    "Interval: 95 % confidence interval of the mean over runs, or over jobs if there are several rounds. USD: cost of the ended jobs "
    "until two minutes after their end, maximum cost of the other jobs. USD per unit: for a headline in units per second, the machines' cost of one unit."
)


def group_blocks(view: GroupView) -> Iterator[Block]:
    """Yield the document that `bai status` shows for a group."""
    yield Facts(_facts(view))
    yield from job_blocks(view)


def job_blocks(view: GroupView) -> Iterator[Block]:
    """Yield the jobs of a group in the order of their starts, with the reasons why jobs were refused."""
    columns = [
        Column("job", number=False, wraps=True),
        Column("combination", number=False),
        Column("status", number=False),
    ]
    rows = [
        [Phrase(each.job.job_id), Phrase(each.job.words, "soft"), _word(each), _dollars(each.dollars)]
        for each in view.jobs
    ]
    yield Table([*columns, Column("USD", pointed=False)], rows)
    refused = ((each.job.job_id, each.decision.refused) for each in view.jobs if each.decision is not None)
    yield Notes([Phrase(f"{job_id}: {why}", "bad") for job_id, why in refused if why is not None])


def _facts(view: GroupView) -> list[Fact]:
    waiting = sum(each.word == NOT_STARTED for each in view.jobs)
    facts = [
        Fact("group", view.group.group_id, "strong", copied=True),
        Fact("jobs", f"{len(view.jobs)}, {view.plan.max_parallel} at a time"),
    ]
    if waiting:
        facts.append(Fact("not started", f"{waiting}", "caution"))
    if view.plan.max_cost is not None:
        facts.append(Fact("cost", f"{view.dollars:,.2f} of at most {view.plan.max_cost:,.2f} USD"))
    return [*facts, *([Fact("cancelled", "no further job starts", "caution")] if view.cancelled else [])]


def _word(job: GroupJob) -> Phrase:
    if job.status is not None and job.word == job.status.status:
        return status_phrase(job.status)
    return Phrase(job.word, "soft" if job.word == NOT_STARTED else "bad")


def plan_blocks(rows: Sequence[tuple[str, int, float | None]], *, max_cost: float | None) -> Iterator[Block]:
    """Yield the plan of a group. rows: for each combination, its name, the number of its jobs, and the
    maximum cost of a job (USD)."""
    columns = [Column("combination", number=False), Column("jobs"), Column("USD at most", pointed=False)]
    yield Table(columns, [[Phrase(words), Phrase(str(count)), _dollars(usd)] for words, count, usd in rows])
    total = sum((usd or 0.0) * count for _, count, usd in rows)
    if any(usd is not None for _, _, usd in rows):
        bound = f"; with max_cost, jobs start only up to {max_cost:,.2f} USD" if max_cost is not None else ""
        yield Paragraph(f"all jobs together: at most {total:,.2f} USD{bound}")


def combination_blocks(compared: GroupComparison) -> Iterator[Block]:
    """Yield the comparison of a group's combinations."""
    yield Facts(_facts(compared.view))
    numbers = [
        Column("runs", drops=3),
        Column("95 % interval", drops=2),
        Column("USD", drops=1),
        Column("USD per unit", drops=1),
    ]
    columns = [
        *(Column(key, number=False) for key in compared.keys),
        Column("status", number=False, drops=4),
        Column(compared.metric),
        *numbers,
    ]
    yield Table(columns, [_row(each, compared.keys) for each in compared.rows])
    if (plot := scaling_plot(compared)) is not None:
        yield plot
    yield Notes([Phrase(each, "caution") for each in compared.left_out])
    yield Paragraph(_METHOD, "soft")


def _row(row: CombinationRow, keys: Sequence[str]) -> list[Phrase]:
    mean, half = row.mean, row.half_width
    tone: Tone = "" if row.state == "SUCCEEDED" else "caution"
    value = Phrase("-") if mean is None else quantity_phrase(mean, row.units)
    between = "-"
    if mean is not None and half is not None:
        between = " … ".join(quantity(each, row.units)[0] for each in (mean - half, mean + half))
    per_unit = "-" if row.per_unit is None else f"{row.per_unit:.3g}"
    return [
        *(Phrase(row.set[key]) for key in keys),
        Phrase(row.state, tone),
        value,
        Phrase(str(len(row.values))),
        Phrase(between),
        _dollars(row.dollars),
        Phrase(per_unit),
    ]


def _dollars(dollars: float | None) -> Phrase:
    return Phrase("-" if dollars is None else f"{dollars:,.2f}")


def scaling_plot(compared: GroupComparison) -> ScalingPlot | None:
    """Return a plot of the metric's headline over a key of the matrix whose values are numbers. Each
    combination of values of the other keys is a line. None if no key has numbers, or if there are fewer than
    two points."""
    key = compared.scale
    points = _points(compared, key) if key is not None else {}
    every = [point for line in points.values() for point in line]
    if key is None or len({x for x, _ in every}) < 2:
        return None
    (left, right), top = (
        (min(x for x, _ in every), max(x for x, _ in every)),
        max(0.0, *(y for _, y in every)),
    )
    bottom = min(0.0, *(y for _, y in every))

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)
        return round(across, 1), round(_BOTTOM - (y - bottom) / ((top - bottom) or 1.0) * (_BOTTOM - _TOP), 1)

    units = next((row.units for row in compared.rows if row.units), "")
    lines = [
        ScalingLine(
            name, [(*place(x, y), f"{name} {key}={x:g}: {amount(y, units)}".strip()) for x, y in line]
        )
        for name, line in points.items()
    ]
    ticks = [(place(x, bottom)[0], _HEIGHT - 12, f"{x:g}") for x in sorted({x for x, _ in every})]
    heights = [(4, place(left, y)[1], amount(y, units)) for y in (bottom, top)]
    return ScalingPlot(
        title=Phrase(f"{compared.metric} over {key}"),
        width=_WIDTH,
        height=_HEIGHT,
        lines=lines[:_LINES],
        texts=[*ticks, *heights],
        label=f"{compared.metric} over {key}: {len(every)} combinations",
    )


def _points(compared: GroupComparison, key: str) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each line, in ascending order of the key's numbers."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in compared.rows:
        x, y = number_in(row.set[key]), row.mean
        if x is not None and y is not None:
            name = " ".join(f"{other}={text}" for other, text in row.set.items() if other != key)
            found.setdefault(name, []).append((x, y))
    return {name: sorted(line) for name, line in found.items()}
