"""A document as a sequence of blocks, which describe its content but not its appearance.

Each format has a `Renderer` with one small method per kind of block. A page has a macro in `blocks.html` per
kind of block.
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
    """A short text, such as a cell or a note. A phrase can contain any text of other programs, which the
    renderer escapes."""

    text: str
    tone: Tone = ""
    units: str = ""
    better: Better | None = None
    """Whether lower or higher values of the metric are better. A sign after the metric's name shows it."""
    trend: Sequence[float] = ()
    """Values that a screen shows as a sparkline instead of the text."""


def quantity_phrase(value: float, units: str, *, floor: float | None = None) -> Phrase:
    """Return a metric's value as a phrase, with its units unless the text already contains them. floor: as
    for `quantity`."""
    text, rest = quantity(value, units, floor=floor)
    return Phrase(text, units=rest)


class Fact(NamedTuple):
    """A labelled value. A fact with an empty label continues the previous fact."""

    label: str
    text: str
    tone: Tone = ""
    copied: bool = False
    """Whether users copy the value to use it, as with a command. A screen does not wrap such a value."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    number: bool = True
    drops: int = 0
    """Order in which columns are left out on a narrow screen: the column with the highest `drops` first; a column
    with 0 never."""
    least: int = 0
    """Smallest width of the column (characters). The columns of a live table do not move if they have a
    smallest width."""
    cut_to: int = 0
    """On a screen, texts of the column are truncated at most to this width (characters); 0 if texts are never
    truncated."""
    most: int = 0
    """Largest width of the column (characters); 0 if there is no limit."""
    wraps: bool = False
    """Whether long texts of the column are wrapped instead of truncated. Ids are wrapped, because users copy
    them."""
    pointed: bool = True
    """Whether the decimal points of the column's numbers are aligned."""


class Block:
    """A part of a document."""

    kind: ClassVar[str]
    """Name of the renderer's method or macro for the block."""


@dataclass(frozen=True)
class Title(Block):
    """The title of a document. A page shows the title in its head."""

    kind = "title"
    text: str
    status: Phrase | None = None
    ruled: bool = False
    """Whether a screen draws the title within a line, which separates the document from output of other
    programs above it."""


@dataclass(frozen=True)
class Heading(Block):
    """The heading of a section."""

    kind = "heading"
    text: str
    anchor: str
    folded: bool = False
    """Whether the section is collapsed in Markdown, which is written for comments on pull requests."""


@dataclass(frozen=True)
class OutcomeLine(Block):
    """How a job ended. tone: good, bad, or soft if the job has not ended."""

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
    """Command that shows all rows, because a renderer can leave rows out. In every block, `more` is the
    command that shows all rows."""
    brief: bool = False
    """Whether the facts are short, so that a page places them side by side."""


@dataclass(frozen=True)
class Notes(Block):
    """A list of sentences."""

    kind = "notes"
    rows: Sequence[Phrase]
    warnings: bool = False


@dataclass(frozen=True)
class Table(Block):
    """A table. The first column of a table contains the names of the rows."""

    kind = "table"
    columns: Sequence[Column]
    rows: Sequence[Sequence[Phrase]]
    caption: str = ""
    more: str = ""
    hidden: int = 0
    """Number of rows that the block does not contain but the command `more` shows."""
    stacks: bool = False
    """Whether, on a narrow screen, the name of each row is on a line of its own."""


@dataclass(frozen=True)
class Code(Block):
    """Text that is shown unchanged and without wrapping."""

    kind = "code"
    text: str
    log: bool = False
    """Whether the text is a program's output, which can contain colours."""


@dataclass(frozen=True)
class PageOnly(Block):
    """Blocks that only a page shows."""

    kind = "page_only"
    blocks: Sequence[Block]
    summary: str = ""
    """Title of the collapsed section on a page; empty if the blocks are not collapsed."""


class Mark(NamedTuple):
    """A run in a dot plot."""

    side: str
    """Side of the comparison. Marks of side "a" are round, marks of side "b" are square."""
    x: float
    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class DotPlot(Block):
    """A plot with a mark for each run at its value of a metric. Lengths are in the units of the plot's
    box."""

    kind = "dot_plot"
    title: Phrase
    width: int
    height: int
    band: tuple[float, float] | None
    """Top and height of the shaded band behind the marks; None if the plot has no band."""
    centres: Sequence[tuple[float, float, float]]
    """Horizontal lines at the centres of the sides' values: first x, last x, y."""
    marks: Sequence[Mark]
    texts: Sequence[tuple[float, float, str]]
    """Texts in the plot, each with its x and y."""
    label: str
    """Description of the plot for screen readers."""


class ScalingLine(NamedTuple):
    """A line of a scaling plot."""

    name: str
    points: Sequence[tuple[float, float, str]]
    """x, y and the text of each point."""


@dataclass(frozen=True, kw_only=True)
class ScalingPlot(Block):
    """A plot of a metric's headline over the values of a key of the matrix, as lines with a mark at each
    point. Lengths are in the units of the plot's box."""

    kind = "scaling_plot"
    title: Phrase
    width: int
    height: int
    lines: Sequence[ScalingLine]
    texts: Sequence[tuple[float, float, str]]
    """Texts in the plot, each with its x and y."""
    label: str
    """Description of the plot for screen readers."""


class Tile(NamedTuple):
    """A headline of a job, with a small plot of its values."""

    name: Phrase
    value: Phrase
    what: str
    points: str
    """Points of the small plot's line, in a box of 100 by 34; empty if there is no plot."""


@dataclass(frozen=True)
class Tiles(Block):
    """The headlines of a job."""

    kind = "tiles"
    rows: Sequence[Tile]


class TimelineBar(NamedTuple):
    """A phase of a node in a timeline. Positions are percentages of the whole time."""

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
    """Starts of all runs except the first (percentages of the whole time)."""
    ticks: Sequence[str]
    """Labels of the time axis, which are at equal distances."""


class SeriesFigures(NamedTuple):
    """The figures of one series of a metric."""

    label: str
    """Name that distinguishes the series from the metric's other series; empty if the metric has only one
    series."""
    headline: str
    what: str
    """How the series' headline was computed, or why there is no headline."""
    figures: Sequence[Phrase]
    unsteady: str | None


@dataclass(frozen=True)
class MeasuredMetric:
    """A metric of the benchmark, or one kind of sample of the machines."""

    name: Phrase
    plot: int
    """Number of the metric's plot on a page."""
    values: int
    drawing: Sequence[str] = ()
    """Notes on the metric's plot."""
    warmup: str = ""
    series: Sequence[SeriesFigures] = ()


@dataclass(frozen=True)
class Metrics(Block):
    """Metrics with the figures of their series."""

    kind = "metrics"
    columns: Sequence[str]
    """Names of the figures, which become the columns."""
    parts: Sequence[MeasuredMetric]
    axes: Sequence[tuple[str, str]]
    """Horizontal axes that users can choose for the plots, each with its key and its name."""


@dataclass(frozen=True)
class Machines(Block):
    """Plots of the machines' samples."""

    kind = "machines"
    parts: Sequence[MeasuredMetric]
    more: Sequence[MeasuredMetric]
    """Metrics in the page's collapsed section."""


class Renderer(ABC, Generic[Piece]):
    """Base class that converts blocks to pieces of one format, such as lines."""

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
        """Yield nothing, for blocks that only a page shows."""
        yield from ()

    machines = timeline = tiles = dot_plot = scaling_plot = page_only = nothing
