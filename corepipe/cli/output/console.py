"""A console whose lines break between words in a terminal, and end in no blanks elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from corepipe.cli.output.plain import Lossy, Unpadded, broken

PIPE_WIDTH = 4096
"""Columns of an output that is no terminal."""


class Lines(Console):
    """A console on stdout or, with `stderr`, on stderr.

    Texts are printed as they are: brackets are no markup.  In a terminal, and where `COLUMNS` says how wide,
    they break between words; elsewhere lines are as long as they need to be.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, soft_wrap=True, emoji=False)
        self._breaks = self.is_terminal or "COLUMNS" in os.environ
        if not self.is_terminal:
            stream = cast("TextIO", self.file)
            self.file = cast("IO[str]", Lossy(stream) if stderr else Unpadded(stream))
            self.width = self.width if self._breaks else PIPE_WIDTH

    def print(self, *objects: Any, **how: Any) -> None:
        """Prints as rich does, with lines broken between words; tables break their lines themselves."""
        super().print(*(self._broken(objects) if self._breaks else objects), **how)

    def _broken(self, objects: tuple[Any, ...]) -> Iterator[Any]:
        for one in objects:
            if isinstance(one, str):
                yield broken(one, self.width)
            elif isinstance(one, Text) and not one.spans:
                yield Text(broken(one.plain, self.width), style=one.style)
            else:
                yield one
