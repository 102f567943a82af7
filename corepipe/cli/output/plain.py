"""The standard streams as commands need them: open, and ASCII for what we draw where they have no UTF-8."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any, TextIO, cast

PLAIN = {
    **dict(zip("·▁▂▃▄▅▆▇█", "._:-=+*%#", strict=True)),
    **dict(zip("▏▎▍▌▋▊▉", "...++++", strict=True)),
    "±": "+-", "µ": "u", "×": "x", "…": "...", "–": "-", "—": "-", "→": "->", "≤": "<=", "≥": ">=",
}  # fmt: skip
"""ASCII characters in place of the symbols that commands draw."""


def open_closed_streams() -> None:
    """Opens closed standard streams on the null device; otherwise their numbers would be given to files."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 -- as long as the process


def write_plainly() -> None:
    """Makes stdout and stderr accept any character; where they have no UTF-8, they get ASCII symbols.

    Lines on a stdout that is no terminal end in no blanks.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not _has_utf8(stream.encoding):
            name = f"corepipe-{stream.encoding}"
            codecs.register_error(name, partial(_plain, stream.encoding))
            stream.reconfigure(encoding="ascii", errors=name)
    if not sys.stdout.isatty():
        sys.stdout = cast("TextIO", Unpadded(sys.stdout))


class Unpadded:
    """Stands for a stream, and writes to it without the blanks before the ends of lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r"[ \t]+(?=\n)", "", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Lossy(Unpadded):
    """Writes as Unpadded does, and loses what cannot be written: that ends no command, as it is progress."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def broken(text: str, width: int) -> str:
    """Returns a text with lines of at most `width` columns, where words are no longer than that.

    A command that is continued on the next line stays as it is.
    """
    lines = text.split("\n")
    whole = {at + past for at, line in enumerate(lines) if line.endswith("\\") for past in (0, 1)}
    return "\n".join(line if at in whole else _filled(line, width) for at, line in enumerate(lines))


def _filled(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip


def _has_utf8(encoding: str) -> bool:
    """Tells whether the output is read as UTF-8: not where somebody asks for the C locale, which is ASCII.

    Python writes UTF-8 there all the same.
    """
    locale = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
    asked = os.environ.get("PYTHONUTF8") == "1" or "PYTHONIOENCODING" in os.environ
    return codecs.lookup(encoding).name == "utf-8" and (asked or locale not in {"C", "POSIX"})


def _plain(encoding: str, error: UnicodeError) -> tuple[bytes, int]:
    """Encodes what is not ASCII: our symbols as ASCII, a user's characters in the stream's own encoding."""
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return b"".join(_bytes(character, encoding) for character in lost), error.end


def _bytes(character: str, encoding: str) -> bytes:
    if character in PLAIN:
        return PLAIN[character].encode()
    try:
        return character.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        return character.encode("ascii", "backslashreplace")
