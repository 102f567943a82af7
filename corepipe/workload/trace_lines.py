"""Files of traces, read line by line, and the errors for lines that cannot be read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from corepipe.errors import UserError


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a trace with the fields that it needs; makes the errors that name it."""

    path: Path
    number: int
    fields: dict[str, object]
    needed: tuple[str, ...]

    def error(self, field: str, what: str, remedy: str) -> UserError:
        return UserError(f"{self.path}, line {self.number}, {field}: {what}; {remedy}", "trace")

    def tokens(self, field: str) -> int:
        """Returns a whole number of at least 1."""
        value = self._present(field)
        try:
            number = float(str(value))
        except ValueError:
            raise self.error(field, f"{value!r:.40} is no number", "give the number of tokens") from None
        if not number.is_integer() or number < 1:
            raise self.error(
                field, f"{value} tokens", "a request has at least 1; drop the line if it failed or was empty"
            )
        return int(number)

    def seconds(self, field: str, read: Callable[[str], float]) -> float:
        value = self._present(field)
        try:
            seconds = read(str(value))
        except ValueError:
            raise self.error(field, f"{value!r:.40} is no time", "give it as the other lines do") from None
        if not 0 <= seconds < float("inf"):
            raise self.error(field, f"{value} is before the start", "times count up from 0")
        return seconds

    def _present(self, field: str) -> object:
        value = self.fields.get(field)
        if value is None or value == "":
            raise self.error(field, "is missing", f"every line needs {', '.join(self.needed)}")
        return value


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Opens the file as text.  Raises UserError for one that cannot be read, also while it is read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise UserError(f"--trace {path}: {error.strerror}", "trace") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--trace {path}: is not text in UTF-8 ({error.reason})", "trace") from error
    except csv.Error as error:
        raise UserError(f"--trace {path}: is not CSV ({error})", "trace") from error


def json_lines(path: Path, needed: tuple[str, ...] = ()) -> Iterator[Line]:
    with opened(path) as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            line = Line(path, number, {}, needed)
            try:
                fields = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise line.error("text", f"not JSON ({error})", "give one object a line") from error
            if not isinstance(fields, dict):
                raise line.error("text", "not an object", "give one object a line")
            yield replace(line, fields=fields)
