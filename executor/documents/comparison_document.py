"""The document of a comparison: other differences between the sides, a row per metric, notes, and plots of
all runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from executor.analysis.baseline import METHOD as BAND_METHOD
from executor.analysis.baseline import AgainstHistory, BandedMetric
from executor.analysis.compared_metric import Incomparable, MetricComparison
from executor.analysis.comparison import METHOD, Comparison
from executor.analysis.differences import Difference
from executor.documents.document import (
    Block,
    Column,
    DotPlot,
    Fact,
    Facts,
    Mark,
    Notes,
    Paragraph,
    Phrase,
    Table,
    Tone,
    quantity_phrase,
)
from executor.jobs.compared_pair import ComparedPair
from executor.quantities import amount, counted, listed, percent, quantity

_NAMED = 3
"""Maximum number of metrics that a note names."""
_ONLY = 20
"""Largest number of metrics that are named if only one side has them."""
_PICTURES = 64
_TONES: dict[str, Tone] = {
    "better": "good",
    "worse": "bad",
    "cannot tell": "caution",
    "different": "strong",
}
_MORE = "bai compare --json"
_WIDTH, _LEFT, _RIGHT = 640, 24, 16
_HEIGHT, _TOP, _BOTTOM = 160, 18, 136
_Compared = MetricComparison | BandedMetric


def pair_blocks(pair: ComparedPair) -> Iterator[Block]:
    """Yield the document of a comparison of two sides."""
    return comparison_blocks(
        pair.comparison,
        names=pair.names,
        counts=pair.counts,
        differences=pair.differences,
        left_out=pair.left_out,
    )


def comparison_blocks(
    comparison: Comparison,
    *,
    names: tuple[str, str],
    counts: tuple[int, int],
    differences: Sequence[Difference] = (),
    left_out: Sequence[str] = (),
) -> Iterator[Block]:
    """Yield the document of a comparison of two sides. counts: number of runs of each side."""
    sides = [
        Fact(letter, f"{name} ({counted(count, 'run')})", "strong")
        for letter, name, count in zip("AB", names, counts, strict=True)
    ]
    yield Facts([*sides, *_left_out(left_out), *(Fact("note", each) for each in comparison.notes)])
    if not comparison.every:
        yield Paragraph("the two sides have no metric in common", "caution")
    yield from _differences(differences)
    yield from _metrics(comparison.every, ("A", "B", "95 % interval"))
    only = (("A", comparison.only_a), ("B", comparison.only_b))
    yield Facts([Fact(f"only in {letter}", listed(names, _ONLY)) for letter, names in only if names])
    yield Paragraph(METHOD, "soft")


def history_blocks(
    banded: AgainstHistory,
    *,
    name: str,
    history: str,
    differences: Sequence[Difference] = (),
    left_out: Sequence[str] = (),
) -> Iterator[Block]:
    """Yield the document of a comparison of one job with the history of similar jobs."""
    yield Facts([Fact("run", name, "strong"), Fact("history", history), *_left_out(left_out)])
    if not banded.every:
        yield Paragraph("the run and the history have no metric in common", "caution")
    yield from _differences(differences)
    yield from _metrics(banded.every, ("history", "run", "band"))
    yield Paragraph(BAND_METHOD, "soft")


def change_text(change: float, *, relative: bool, units: str = "") -> str:
    """Return a change as text, for example "-20.1 %". If the change is not relative, the text has a sign and
    the metric's units."""
    if not relative:
        text = quantity(abs(change), units)[0]
        return f"{'-' if change < 0 else '+'}{text}"
    if abs(change) >= 10:
        return f"x {change + 1:,.3g}"
    digits = 1 if abs(change) >= 0.0095 else 2
    return percent(change, f"+.{digits}f")


def _left_out(sentences: Sequence[str]) -> list[Fact]:
    return [Fact("left out", each, "caution") for each in sentences]


def _differences(differences: Sequence[Difference]) -> Iterator[Block]:
    """Yield the differences between the sides' machines and descriptors, which could explain differences
    between metrics."""
    rows = [Fact(each.what, f"{each.a} → {each.b}", "caution") for each in differences]
    if rows:
        yield Facts(rows, caption="What else differs", more=_MORE)


def _metrics(every: Sequence[_Compared | Incomparable], heads: tuple[str, str, str]) -> Iterator[Block]:
    """Yield a table of the metrics, notes on the metrics, and a plot of each metric. heads: column headings
    of the two sides and of the interval."""
    if not every:
        return
    a, b, between = heads
    numbers = [Column(a, drops=1), Column(b, drops=1), Column("change"), Column(between, drops=2)]
    columns = [Column("metric", number=False), *numbers, Column("", number=False)]
    yield Table(columns, [_row(each) for each in every], more=_MORE, stacks=True)
    sentences: dict[str, list[str]] = {}
    for each in every:
        for sentence in (each.note,) if isinstance(each, Incomparable) else each.notes:
            sentences.setdefault(sentence, []).append(each.name)
    # A note that applies to several metrics is printed only once, with the names of these metrics.
    yield Notes([Phrase(f"{listed(names, _NAMED)}: {text}") for text, names in sentences.items()])
    for each in [each for each in every if not isinstance(each, Incomparable)][:_PICTURES]:
        yield _dot_plot(each, (a, b))


def _row(each: _Compared | Incomparable) -> list[Phrase]:
    if isinstance(each, Incomparable):
        sides = zip((each.a, each.b), each.below, strict=True)
        numbers = [quantity_phrase(*side, floor=below) for side, below in sides]
        return [Phrase(each.name), *numbers, Phrase("-"), Phrase("-"), Phrase("not comparable", "caution")]
    verdict = each.verdict_text
    tone = _TONES.get(verdict.partition("\n")[0], "")
    a, b = (quantity_phrase(value, each.units) for value in (each.centre_a, each.centre_b))
    if a.units != b.units:
        a, b = (Phrase(amount(value, each.units)) for value in (each.centre_a, each.centre_b))
    change = change_text(each.change, relative=each.relative, units=each.units)
    return [
        Phrase(each.name, better=each.better),
        a,
        b,
        Phrase(change),
        Phrase(_between(each)),
        Phrase(verdict, tone),
    ]


def _between(each: _Compared) -> str:
    """Return the ends of a metric's band, or of the confidence interval of its change, as text."""
    if isinstance(each, BandedMetric):
        low, high = each.low, each.high
    else:
        low, high = each.effect.low, each.effect.high
    if low is None or high is None:
        return "-"
    if isinstance(each, BandedMetric):
        return " … ".join(quantity(end, each.units)[0] for end in (low, high))
    first, last = (change_text(end, relative=each.relative, units=each.units) for end in (low, high))
    return f"{first.removesuffix(' %') if last.endswith(' %') else first} … {last}"


def _dot_plot(each: _Compared, sides: tuple[str, str]) -> DotPlot:
    """Return a plot of all runs of both sides. The first side's runs come first; each side's runs are in
    order of time."""
    band: list[float] = []
    groups = (each.history, each.newest) if isinstance(each, BandedMetric) else (each.a, each.b)
    if isinstance(each, BandedMetric) and each.low is not None and each.high is not None:
        band = [each.low, each.high]
    runs = list(chain(*groups))
    low, high = min(*runs, *band), max(*runs, *band)
    span = high - low
    step = (_WIDTH - _LEFT - _RIGHT) / len(runs)

    def x(place: float) -> float:
        return round(_LEFT + place * step, 1)

    def y(value: float) -> float:
        share = (value - low) / span if span else 0.5
        return round(_BOTTOM - share * (_BOTTOM - _TOP), 1)

    marks, centres, texts = [], [], [(x(0), y(end) - 4, amount(end, each.units)) for end in {low, high}]
    first = 0
    for side, name, values, centre in zip("ab", sides, groups, (each.centre_a, each.centre_b), strict=True):
        marks += [
            Mark(side, x(first + i + 0.5), y(value), f"{name}: {amount(value, each.units)}")
            for i, value in enumerate(values)
        ]
        centres.append((x(first), x(first + len(values)), y(centre)))
        texts.append((x(first), _HEIGHT - 4, name))
        first += len(values)
    label = f"{len(groups[0])} runs of {sides[0]} and {len(groups[1])} of {sides[1]}"
    return DotPlot(
        title=Phrase(each.name, better=each.better),
        width=_WIDTH,
        height=_HEIGHT,
        # The band has a height of at least 1, so that it is visible even if all runs gave the same number.
        band=(y(band[1]), max(1.0, round(y(band[0]) - y(band[1]), 1))) if band else None,
        centres=centres,
        marks=marks,
        texts=texts,
        label=f"{label}, from {amount(min(runs), each.units)} to {amount(max(runs), each.units)}",
    )
