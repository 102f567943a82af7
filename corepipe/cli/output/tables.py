"""Tables and lists whose figures are whole at any width of the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

LABEL_WIDTH = 11
"""Columns of labels, so that those of several lists are as wide."""


class Figures(Table):
    """A table that is never narrower than its figures: where it does not fit it flows over, uncut.

    Columns to the right hold figures and stay whole; the others are wrapped between words.
    """

    def __init__(self, *headings: str, rows: Iterable[Iterable[Any]] = (), **more: Any) -> None:
        """Makes a table; a heading after ">" is that of a column to the right."""
        super().__init__(**{"box": None, **more})
        for heading in headings:
            self.add_column(heading.removeprefix(">"), justify="right" if heading[:1] == ">" else "left")
        for row in rows:
            self.add_row(*row)

    def add_row(self, *cells: Any, style: Any = None, end_section: bool = False) -> None:
        """Adds a row; a str is shown as it is, without markup."""
        texts = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*texts, style=style, end_section=end_section)

    @property
    def width_of_all(self) -> int:
        """Columns of the screen in which nothing needs to be wrapped."""
        return self._whole([most for _, most in map(_limits, self.columns)])

    def _whole(self, widths: Sequence[int]) -> int:
        return sum(widths) + (self.padding[1] + self.padding[3]) * len(widths)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - self._whole([0] * len(self.columns))
        widths = _fitted([_limits(column) for column in self.columns], room)
        for column, width in zip(self.columns, widths, strict=True):
            column.width, column.overflow = width, "fold"
        yield from super().__rich_console__(console, options.update(width=self._whole(widths), no_wrap=False))


def facts(rows: Iterable[tuple[str, str]], style: str = "", **more: Any) -> Figures:
    """Returns a table of labels, in `style`, and their texts, which are wrapped between words."""
    shown = ((Text(f"{label:<{LABEL_WIDTH}}", style), text) for label, text in rows)
    return Figures("", "", rows=shown, show_header=False, **more)


def size(count: int) -> str:
    """Returns a number of bytes in GB or MB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


USELESS = 10.0
"""Factor, either way, from which on an interval is too wide to decide anything by."""


def between(bounds: tuple[float, float]) -> str:
    """Returns an interval with as many digits as are useful, and says of one that is too wide that it is not
    known."""
    ends = " to ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in bounds)
    return ends if bounds[1] <= USELESS**2 * bounds[0] else f"not known ({ends})"


def _limits(column: Column) -> tuple[int, int]:
    """The least columns of the screen in which nothing of a column is cut, and those that it fills."""
    cells = [str(cell) for cell in column.cells]
    whole, parts = _longest(cells, str.splitlines), _longest(cells, _words)
    header = [str(column.header)]
    least = whole if column.justify == "right" else parts
    return max(least, _longest(header, _words)), max(whole, _longest(header, str.splitlines))


def _words(cell: str) -> list[str]:
    """Returns the words between which a cell is wrapped: an indent stays with the first."""
    return re.findall(r"^\s*\S+|\S+", cell)


def _longest(cells: Sequence[str], split: Callable[[str], list[str]]) -> int:
    return max((cell_len(part) for cell in cells for part in split(cell)), default=0)


def _fitted(limits: Sequence[tuple[int, int]], room: int) -> list[int]:
    """Returns widths that fit into the room, if they can: the widest are narrowed first."""
    widths = [most for _, most in limits]
    while sum(widths) > room:
        yielding = [at for at, (least, _) in enumerate(limits) if widths[at] > least]
        if not yielding:
            break
        widths[max(yielding, key=widths.__getitem__)] -= 1
    return widths
