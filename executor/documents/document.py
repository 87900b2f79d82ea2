"""A document as blocks: its content, without its appearance.

A document is built once. A `Renderer` has one small method for each kind of block; on a page that is a macro of `blocks.html`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Generic, Literal, NamedTuple, TypeVar

from bai_agent.job.descriptor.metric_tables import Better
from bai_agent.light_dataclass import dataclass
from executor.quantities import quantity

Tone = Literal["", "strong", "soft", "good", "bad", "caution", "live"]
Piece = TypeVar("Piece")


class Phrase(NamedTuple):
    """A short text, such as a cell or a note. It may contain foreign text of any kind: a renderer makes it
    harmless."""

    text: str
    tone: Tone = ""
    units: str = ""
    better: Better | None = None
    """Direction of a metric, shown as a sign after its name."""
    trend: Sequence[float] = ()
    """Values that a screen shows as a sparkline in place of the text."""


def quantity_phrase(value: float, units: str, *, floor: float | None = None) -> Phrase:
    """Return a metric's value, and its units unless the text contains them. floor: as for `quantity`."""
    text, rest = quantity(value, units, floor=floor)
    return Phrase(text, units=rest)


class Fact(NamedTuple):
    """A labelled value. A fact without a label belongs to the previous one."""

    label: str
    text: str
    tone: Tone = ""
    copied: bool = False
    """Whether people copy it: then a screen does not wrap it."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    number: bool = True
    drops: int = 0
    """Priority for dropping a column on a narrow screen: the highest number is dropped first; 0: never."""
    least: int = 0
    """Least width in characters, so that a live table does not jump."""
    cut_to: int = 0
    """Smallest width of a cut text on a screen (characters); 0: texts are shown whole or not at all."""
    most: int = 0
    """Greatest width in characters; 0: no limit."""
    wraps: bool = False
    """Whether a long text continues in the next line. Ids are wrapped, because people copy them."""
    pointed: bool = True
    """Whether the decimal points of its numbers are aligned."""


class Block:
    """A part of a document."""

    kind: ClassVar[str]
    """Name of the method, or of the macro, that renders it."""


@dataclass(frozen=True)
class Title(Block):
    """Names the subject of a document; a page has it in its head."""

    kind = "title"
    text: str
    status: Phrase | None = None
    ruled: bool = False
    """Whether a screen draws a rule above it, because other programs' lines precede it."""


@dataclass(frozen=True)
class Heading(Block):
    """Begins a section."""

    kind = "heading"
    text: str
    anchor: str
    folded: bool = False
    """Whether a comment on a change collapses the section."""


@dataclass(frozen=True)
class OutcomeLine(Block):
    """End of a job. Tone: good, bad, or soft if the job has not ended."""

    kind = "outcome"
    sentence: str
    tone: Tone
    detail: str = ""


@dataclass(frozen=True)
class Paragraph(Block):
    """One or more sentences."""

    kind = "paragraph"
    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Facts(Block):
    """Labels and values."""

    kind = "facts"
    rows: Sequence[Fact]
    caption: str = ""
    more: str = ""
    """Command that shows all rows. Without a width, a renderer leaves out no row. The same in other
    blocks."""
    brief: bool = False
    """Whether they are short, so that a page places them side by side."""


@dataclass(frozen=True)
class Notes(Block):
    """A list of sentences."""

    kind = "notes"
    rows: Sequence[Phrase]
    warnings: bool = False


@dataclass(frozen=True)
class Table(Block):
    """The first column names the rows."""

    kind = "table"
    columns: Sequence[Column]
    rows: Sequence[Sequence[Phrase]]
    caption: str = ""
    more: str = ""
    hidden: int = 0
    """Number of rows that `more` shows in addition to these."""
    stacks: bool = False
    """Whether names have lines of their own on a narrow screen."""


@dataclass(frozen=True)
class Code(Block):
    """Text that is shown unchanged, line by line."""

    kind = "code"
    text: str
    log: bool = False
    """Whether it is a program's output, which may have colours."""


@dataclass(frozen=True)
class PageOnly(Block):
    """Blocks that only a page has room for."""

    kind = "page_only"
    blocks: Sequence[Block]
    summary: str = ""
    """Title of the collapsed section on a page; empty: they are shown."""


class Mark(NamedTuple):
    """A run in a dot plot."""

    side: str
    """ "a": a round mark, "b": a square one."""
    x: float
    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class DotPlot(Block):
    """The runs of a metric as marks, by value. Lengths are in the units of the plot's box."""

    kind = "dot_plot"
    title: Phrase
    width: int
    height: int
    band: tuple[float, float] | None
    """Top and height of the area behind the marks."""
    centres: Sequence[tuple[float, float, float]]
    """Lines: from x, to x, at y."""
    marks: Sequence[Mark]
    texts: Sequence[tuple[float, float, str]]
    """x, y and the text."""
    label: str
    """Description for screen readers."""


class ScalingLine(NamedTuple):
    """A line of a scaling plot."""

    name: str
    points: Sequence[tuple[float, float, str]]
    """x, y and the text of each point."""


@dataclass(frozen=True, kw_only=True)
class ScalingPlot(Block):
    """A number over another one, as lines with a mark at each point. Lengths are in the units of the plot's box."""

    kind = "scaling_plot"
    title: Phrase
    width: int
    height: int
    lines: Sequence[ScalingLine]
    texts: Sequence[tuple[float, float, str]]
    """x, y and the text."""
    label: str
    """Description for screen readers."""


class Tile(NamedTuple):
    """A headline of a job, with a small line of its values."""

    name: Phrase
    value: Phrase
    what: str
    points: str
    """Points of the line, in a box of 100 by 34; empty: there is none."""


@dataclass(frozen=True)
class Tiles(Block):
    """The headlines of a job."""

    kind = "tiles"
    rows: Sequence[Tile]


class TimelineBar(NamedTuple):
    """A phase of a node; positions are percentages of the whole time."""

    phase: str
    start: float
    width: float
    text: str


@dataclass(frozen=True)
class Timeline(Block):
    """Phases of each node over time."""

    kind = "timeline"
    phases: Sequence[str]
    lanes: Sequence[tuple[str, Sequence[TimelineBar]]]
    marks: Sequence[float]
    """Starts of the runs after the first one, in percent."""
    ticks: Sequence[str]
    """Times at equal distances."""


class SeriesFigures(NamedTuple):
    """A series of a metric."""

    label: str
    """Name among the others; empty if there is only one."""
    headline: str
    what: str
    """How the headline was computed, or the reason why there is none."""
    figures: Sequence[Phrase]
    unsteady: str | None


@dataclass(frozen=True)
class MeasuredMetric:
    """A metric, or one kind of sample of the machines."""

    name: Phrase
    plot: int
    """The number of its plot on a page."""
    values: int
    drawing: Sequence[str] = ()
    """Notes on its plot."""
    warmup: str = ""
    series: Sequence[SeriesFigures] = ()


@dataclass(frozen=True)
class Metrics(Block):
    """Metrics with the figures of their series."""

    kind = "metrics"
    columns: Sequence[str]
    """Names of the figures."""
    parts: Sequence[MeasuredMetric]
    axes: Sequence[tuple[str, str]]
    """Horizontal axes that plots may have: key and name."""


@dataclass(frozen=True)
class Machines(Block):
    """Plots of the machines' samples."""

    kind = "machines"
    parts: Sequence[MeasuredMetric]
    more: Sequence[MeasuredMetric]
    """Parts that are folded away."""


class Renderer(ABC, Generic[Piece]):
    """Turns blocks into pieces of one form, such as lines."""

    def render(self, blocks: Iterable[Block]) -> Iterator[Piece]:
        """Yield the pieces of all blocks."""
        for block in blocks:
            method: Callable[[Block], Iterator[Piece]] = getattr(self, block.kind)
            yield from method(block)

    @abstractmethod
    def title(self, block: Title) -> Iterator[Piece]: ...

    @abstractmethod
    def heading(self, block: Heading) -> Iterator[Piece]: ...

    @abstractmethod
    def paragraph(self, block: Paragraph) -> Iterator[Piece]: ...

    @abstractmethod
    def facts(self, block: Facts) -> Iterator[Piece]: ...

    @abstractmethod
    def notes(self, block: Notes) -> Iterator[Piece]: ...

    @abstractmethod
    def table(self, block: Table) -> Iterator[Piece]: ...

    @abstractmethod
    def outcome(self, block: OutcomeLine) -> Iterator[Piece]: ...

    @abstractmethod
    def code(self, block: Code) -> Iterator[Piece]: ...

    def metrics(self, block: Metrics) -> Iterator[Piece]:
        yield from ()

    def nothing(self, block: Block) -> Iterator[Piece]:
        """Yield nothing: only a page shows it."""
        yield from ()

    machines = timeline = tiles = dot_plot = scaling_plot = page_only = nothing
