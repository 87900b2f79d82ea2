"""Prints documents to standard output, which is a terminal or a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from bai_agent.job.descriptor.metric_tables import Better
from bai_agent.light_dataclass import dataclass
from executor.documents.document import (
    Block,
    Code,
    Column,
    Fact,
    Facts,
    Heading,
    Notes,
    OutcomeLine,
    Paragraph,
    Phrase,
    Renderer,
    Table,
    Title,
)
from executor.documents.text import plain_text, safe_line, shortened, sparkline, speaks_unicode
from executor.quantities import aligned

_STYLES = {
    "good": "green",
    "bad": "red",
    "caution": "yellow",
    "strong": "bold",
    "soft": "dim",
    "live": "cyan",
}
_ASCII = str.maketrans(
    {"…": "..", "→": "->", "±": "+-", "–": "-", "·": "|", "│": "|", "×": "x", "↓": "(lower)", "↑": "(higher)"}
)
_PIPE_WIDTH = 160
_APART = frozenset({"heading", "paragraph", "table", "facts"})
"""Kinds of blocks that have an empty line above them, unless they follow a block of a kind in `_HEADS`."""
_HEADS = frozenset({"title", "outcome", "heading"})
_ROWS = 40
_FACTS = 12
_LEAST_NAME = 12
"""Smallest width of the names' column (characters). If the screen leaves less width, each name is on a line
of its own above its numbers."""
_NAME_SHARE = 3
"""On a narrow screen, the names' column can take width from the other columns, up to the screen's width
divided by this number."""
_LEAST = 8
"""Smallest width of a name or of a wrapped text (characters)."""
_LABEL = 9
_INDENT = 2
_GAP = 2


@dataclass(frozen=True, eq=False)
class _Shown:
    """A column of a table, with the texts of its cells."""

    column: Column
    cells: list[Text]
    trends: list[Sequence[float]]

    @cached_property
    def width(self) -> int:
        """Width with which all cells of the column are shown completely (characters)."""
        lines = (line for cell in self.cells for line in cell.plain.split("\n"))
        longest = max(map(len, self.trends), default=0)
        width = max([self.column.least, longest, cell_len(self.column.name), *map(cell_len, lines)])
        return min(width, self.column.most or width)

    def fitted(self, room: int) -> int:
        """Return the column's width if `room` characters are available; 0 if the column must be dropped."""
        if self.column.wraps:
            return min(self.width, max(_LEAST, room))
        has_texts = any(cell.plain for cell in self.cells) or any(self.trends)
        width = min(self.width, room)
        return width if has_texts and width >= min(self.width, self.column.cut_to or self.width) else 0


class Screen(Renderer[RenderableType]):
    """Converts blocks to renderables of the library rich, which are at most `width` characters wide."""

    def __init__(self, *, width: int, unicode: bool = True, wraps: bool = True) -> None:
        """wraps: whether sentences are wrapped between words. For a pipe, `wraps` is false, and each sentence
        is one line."""
        self._width = width
        self._unicode = unicode
        self._wraps = wraps

    def show(self, console: Console, blocks: Iterable[Block]) -> None:
        """Print the blocks. Texts that users copy are wrapped only by the terminal itself."""
        for each in self.render(blocks):
            console.print(each, soft_wrap=isinstance(each, Text))

    def render(self, blocks: Iterable[Block]) -> Iterator[RenderableType]:
        """Yield the renderables of all blocks. A block of a kind in `_APART` follows an empty line."""
        above = ""
        for block in blocks:
            pieces = list(super().render([block]))
            if pieces and above and block.kind in _APART and above not in _HEADS:
                yield Text()
            yield from pieces
            above = block.kind if pieces else above

    def text(self, text: str, tone: str = "") -> Text:
        """Return a text in the style of `tone`. Characters that the screen cannot show are replaced."""
        plain = plain_text(text)
        return Text(plain if self._unicode else plain.translate(_ASCII), style=_STYLES.get(tone, ""))

    def rule(self, title: Text) -> Rule:
        """Return a horizontal line across the screen that begins with a title."""
        return Rule(title, align="left", style="dim", characters="─" if self._unicode else "-")

    def title(self, block: Title) -> Iterator[RenderableType]:
        text = self.text(block.text, "strong")
        if block.status is not None:
            text.append("  ", style="not bold").append_text(self._phrase(block.status))
        yield self.rule(text) if block.ruled else text

    def heading(self, block: Heading) -> Iterator[RenderableType]:
        yield self.text(block.text, "strong")

    def outcome(self, block: OutcomeLine) -> Iterator[RenderableType]:
        detail = self.text(f"  {block.detail}" if block.detail else "", "soft")
        sentence = self.text(block.sentence, block.tone)
        sentence.stylize("bold")
        yield sentence.append_text(detail)

    def code(self, block: Code) -> Iterator[RenderableType]:
        for line in block.text.split("\n") if block.text else ():
            text = Text.from_ansi(safe_line(line)) if block.log else Text(safe_line(line))
            yield self.text("│ ", "soft").append_text(text) if block.log else text

    def paragraph(self, block: Paragraph) -> Iterator[RenderableType]:
        yield self._sentence(Phrase(block.text, block.tone), 0)

    def facts(self, block: Facts) -> Iterator[RenderableType]:
        if block.caption:
            yield self.text(block.caption, "soft")
        for row in block.rows[: _FACTS if block.more else None]:
            yield self._fact(row, indented=bool(block.caption))
        yield from self._rest(len(block.rows) - _FACTS, block.more)

    def _fact(self, row: Fact, *, indented: bool) -> RenderableType:
        value = self.text(row.text, row.tone)
        label = self.text(f"{'  ' if indented else ''}{row.label}")
        if row.copied or not self._wraps:
            label.pad_right(max(0, _LABEL - len(label)))
            return Text().append_text(Text(f"{label.plain} ", "dim")).append_text(value)
        grid = Grid.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=None if indented else _LABEL, style="dim")
        grid.add_column(overflow="fold")
        grid.add_row(label, value)
        return grid

    def notes(self, block: Notes) -> Iterator[RenderableType]:
        yield from (self._sentence(each, _INDENT) for each in block.rows)

    def _sentence(self, phrase: Phrase, indent: int) -> RenderableType:
        text = self._phrase(phrase)
        return Padding(text, (0, 0, 0, indent)) if self._wraps else Text(" " * indent).append_text(text)

    def _phrase(self, phrase: Phrase) -> Text:
        return self.text(phrase.text, phrase.tone)

    def table(self, block: Table) -> Iterator[RenderableType]:
        rows = block.rows[: _ROWS if block.more else None]
        if not rows:
            return
        if block.caption:
            yield self.text(block.caption, "soft")
        columns = self._columns(block, rows)
        names, *others = columns
        room = self._width - sum(_GAP + each.width for each in others)
        if block.stacks and room < min(_LEAST_NAME, names.width) + _GAP:
            yield from self._stacked(rows, others, whole_names=names.column.wraps)
        else:
            yield self._grid(block, rows, columns)
        yield from self._rest(len(block.rows) - len(rows) + block.hidden, block.more)

    def grid(self, block: Table) -> Grid:
        """Return a table with all of its rows, but without its caption."""
        return self._grid(block, block.rows, self._columns(block, block.rows))

    def _grid(self, block: Table, rows: Sequence[Sequence[Phrase]], columns: Sequence[_Shown]) -> Grid:
        widths = self._fitting(
            columns, least_name=_LEAST_NAME if block.stacks else self._width // _NAME_SHARE
        )
        grid = Grid(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
        grid.show_header = any(each.column.name for each in columns)
        shown = [each for each in columns if each in widths]
        for each in shown:
            self._add_column(grid, each.column, widths[each], first=each is columns[0])
        for index, row in enumerate(rows):
            grid.add_row(
                *(self._cell(each, index, row, widths[each], first=each is columns[0]) for each in shown)
            )
        return grid

    def _add_column(self, grid: Grid, column: Column, width: int, *, first: bool) -> None:
        grid.add_column(
            self.text(column.name),
            justify="right" if column.number and not first else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis" if self._unicode else "crop",
            width=max(1, width),
        )

    def _cell(self, shown: _Shown, index: int, row: Sequence[Phrase], width: int, *, first: bool) -> Text:
        if trend := shown.trends[index]:
            return Text(sparkline(trend, width, unicode=self._unicode), style="cyan")
        if first and not shown.column.wraps:
            return self._name(row[0], width)
        return shown.cells[index]

    def _columns(self, block: Table, rows: Sequence[Sequence[Phrase]]) -> list[_Shown]:
        """Return the table's columns with their texts. If cells have units, the units get a column of their
        own."""
        found = [self._column(i, column, [row[i] for row in rows]) for i, column in enumerate(block.columns)]
        with_units = [i for row in rows for i, each in enumerate(row) if each.units]
        if with_units:
            units = [self.text(_units(row), "soft") for row in rows]
            found.insert(max(with_units) + 1, _Shown(Column("", number=False), units, [()] * len(rows)))
        return found

    def _column(self, place: int, column: Column, phrases: Sequence[Phrase]) -> _Shown:
        trends = [each.trend for each in phrases]
        if not place:
            return _Shown(column, [self._name(each) for each in phrases], trends)
        texts = [each.text for each in phrases]
        texts = aligned(texts) if column.number and column.pointed else texts
        cells = [self._lines(text, each) for text, each in zip(texts, phrases, strict=True)]
        return _Shown(column, cells, trends)

    def _lines(self, text: str, phrase: Phrase) -> Text:
        return Text("\n").join(self.text(line, phrase.tone) for line in text.split("\n"))

    def _fitting(self, columns: Sequence[_Shown], *, least_name: int) -> dict[_Shown, int]:
        """Return the columns that fit on the screen, each with its width. The first column gets the remaining
        width."""
        name, *others = columns
        stay = [each for each in others if not each.column.drops and not each.column.wraps]
        widths = {each: each.width for each in stay}
        left = self._width - sum(_GAP + width for width in widths.values())
        least = name.width if name.column.wraps else min(name.width, max(_LEAST, least_name))
        widths[name] = min(least, max(_LEAST, left))
        left -= widths[name]
        # Columns that are wrapped get their width first. The other columns follow in the order of their
        # importance.
        for each in sorted(others, key=lambda each: (not each.column.wraps, each.column.drops)):
            if each not in widths and (width := each.fitted(left - _GAP)):
                widths[each] = width
                left -= _GAP + width
        widths[name] += min(name.width - widths[name], max(0, left))
        return widths

    def _stacked(
        self, rows: Sequence[Sequence[Phrase]], columns: Sequence[_Shown], *, whole_names: bool
    ) -> Iterator[RenderableType]:
        """Yield each row of a table as several lines: its name and units first, and below them the columns
        that fit."""
        *numbers, last = self._stacking(columns)
        indent = " " * _INDENT
        heads = indent + "".join(f"{each.column.name:>{each.width}}  " for each in numbers)
        yield Text(heads.rstrip(), style="dim")
        for index, row in enumerate(rows):
            units = f" {_units(row)}" if _units(row) else ""
            units = units if len(units) < self._width // 2 else ""
            name = self._name(row[0], None if whole_names else self._width - len(units))
            name.stylize("bold")
            yield name.append_text(self.text(units, "soft"))
            figures = indent + "".join(f"{each.cells[index].plain:>{each.width}}  " for each in numbers)
            first, *rest = last.cells[index].split("\n")
            yield Text(figures).append_text(first)
            yield from (Text(" " * len(figures)).append_text(each) for each in rest)

    def _stacking(self, columns: Sequence[_Shown]) -> Sequence[_Shown]:
        """Return the columns that fit into the line below a row's name."""
        columns = [each for each in columns if each.column.name or each is columns[-1]]
        while (drops := max(each.column.drops for each in columns)) and (
            sum(_GAP + each.width for each in columns) > self._width
        ):
            columns = [each for each in columns if each.column.drops < drops]
        return columns

    def _name(self, phrase: Phrase, width: int | None = None) -> Text:
        """Return a row's name with the sign of the metric's better direction. A name that is wider than
        `width` characters is shortened in the middle."""
        sign = ""
        if phrase.better is not None:
            sign = self.text(" ↓" if phrase.better is Better.LOWER else " ↑").plain
        plain = self.text(phrase.text).plain
        short = plain if width is None else shortened(plain, max(2, width - len(sign)), unicode=self._unicode)
        return Text(short + sign, style=_STYLES[phrase.tone or "strong"])

    def _rest(self, count: int, more: str) -> Iterator[RenderableType]:
        if count > 0 and more:
            yield self.text(f"and {count:,} more: {more}", "soft")


def _units(row: Sequence[Phrase]) -> str:
    return next((each.units for each in row if each.units), "")


def screen_width() -> int:
    """Return the width of the terminal (characters). If standard output is not a terminal, the width is
    practically unlimited."""
    return Console().width if sys.stdout.isatty() else _PIPE_WIDTH


def show_blocks(blocks: Iterable[Block]) -> None:
    """Print a document to standard output."""
    screen = Screen(width=screen_width(), unicode=speaks_unicode(), wraps=sys.stdout.isatty())
    for each in screen.render(blocks):
        show(each)


def show(what: RenderableType) -> None:
    """Print an object to standard output, with colours on a terminal and as plain lines elsewhere."""
    if sys.stdout.isatty():
        Console(highlight=False).print(what, soft_wrap=isinstance(what, Text))
    else:
        print_plainly(what, width=_PIPE_WIDTH)


def print_plainly(what: RenderableType, *, width: int) -> None:
    """Print an object to standard output, without colours and without spaces at the ends of lines."""
    drawn = io.StringIO()
    console = Console(file=drawn, width=width, no_color=True, force_terminal=False, highlight=False)
    console.print(what, soft_wrap=isinstance(what, Text))
    for line in drawn.getvalue().splitlines():
        print(line.rstrip())
