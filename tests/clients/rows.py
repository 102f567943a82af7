"""Runs the rows of a client, and prints the result of each as a line of JSON, which `run` reads.

Runs in the client's own environment, so it needs nothing but Python.  A row is a function: it passes if it
returns, and its docstring is its title.  A row for a field that the server does not support is marked so
(`refused`), and counts as explained if the client gets status 400 and the field's name; otherwise it fails.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

URL = os.environ.get("CLIENTS_URL", "")
"""The base URL of the server, with /v1."""
BASE = URL.removesuffix("/v1")
FORM = os.environ.get("CLIENTS_FORM", "")
"""The API that a client of several uses: "responses" or "messages", else chat."""
MODEL = os.environ.get("CLIENTS_MODEL", "")
SCRIPTED = os.environ.get("CLIENTS_SCRIPTED", "")
"""The model that calls the tool `get_weather` where it may, and then answers (`tests.clients.scripted`)."""
KEY = "none"

RowOutcome = str
PASSED, FAILED, EXPLAINED = "passed", "failed", "explained"


@dataclass(frozen=True)
class RowResult:
    """The result of a row; `why` says what failed, or why it is explained."""

    row: str
    outcome: RowOutcome
    why: str = ""

    def tell(self) -> None:
        print(json.dumps(asdict(self)), flush=True)


@dataclass(frozen=True)
class Refused:
    """An expected error 400 that names `field` (or a part of it), because of `why`."""

    field: str
    why: str


class Rows:
    """The rows of one client, in the order in which they are written."""

    def __init__(self) -> None:
        self._rows: list[tuple[Callable[[], object], Refused | None]] = []

    def __call__(self, function: Callable[[], object]) -> Callable[[], object]:
        self._rows.append((function, None))
        return function

    def refused(self, field: str, why: str) -> Callable[[Callable[[], object]], None]:
        """Adds a row that must end in an error of the server that names `field`."""
        return lambda function: self._rows.append((function, Refused(field, why)))

    def run(self) -> None:
        """Runs all rows; with CLIENTS_ROWS those whose titles contain it."""
        chosen = os.environ.get("CLIENTS_ROWS", "")
        for function, refused in self._rows:
            title = (function.__doc__ or function.__name__).strip()
            if chosen in title:
                _result(title, function, refused).tell()


def _result(title: str, function: Callable[[], object], refused: Refused | None) -> RowResult:
    try:
        made = function()
        if inspect.iscoroutine(made):
            asyncio.run(made)
    except Exception as error:
        if refused and names(error, refused.field):
            return RowResult(title, EXPLAINED, f"`{refused.field}` is refused: {refused.why}")
        return RowResult(title, FAILED, _told(error))
    if refused:
        return RowResult(title, FAILED, f"`{refused.field}` was to be refused, and was not")
    return RowResult(title, PASSED)


@contextmanager
def raises(kind: type[BaseException]) -> Iterator[Any]:
    """Works as pytest's, which not every client installs; yields an object with the raised `error`."""
    caught = SimpleNamespace(error=None)
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def names(error: BaseException, field: str) -> bool:
    """Returns whether an error, or one that it was raised from, is the server's 400 that names the field."""
    for one in chain(error):
        param = getattr(one, "param", None)
        if param is None and isinstance(body := getattr(one, "body", None), dict):
            param = body.get("param", (body.get("error") or {}).get("param"))
        if getattr(one, "status_code", None) == 400 and (str(param).startswith(field) or field in str(one)):
            return True
    return False


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _told(error: BaseException) -> str:
    """Describes in short what failed, and in which line of the row."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "tests/clients" in f.filename]
    at = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}{at}"
