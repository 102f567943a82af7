"""What is tried of a client, row by row, and what became of each: lines of JSON, which `run` reads.

Runs in the client's own environment, so it needs nothing but Python.  A row is a function: it passes if it
returns, and its docstring is its title.  A row of what the server does not do says so (`refused`), and is
explained if the client is told with status 400 and the name of the field; anything else fails.
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
"""Of the server, with /v1."""
MODEL = os.environ.get("CLIENTS_MODEL", "")
KEY = "none"

Outcome = str
PASSED, FAILED, EXPLAINED = "passed", "failed", "explained"


@dataclass(frozen=True)
class Result:
    """A row's end; `why` says what failed, or why it is explained."""

    row: str
    outcome: Outcome
    why: str = ""

    def tell(self) -> None:
        print(json.dumps(asdict(self)), flush=True)


@dataclass(frozen=True)
class Refused:
    """`field` (or what begins with it) is refused with 400, because of `why`."""

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
        """A row that ends in an error of the server, which names `field`."""
        return lambda function: self._rows.append((function, Refused(field, why)))

    def run(self) -> None:
        """All of them; with CLIENTS_ROWS those whose titles have it in them."""
        chosen = os.environ.get("CLIENTS_ROWS", "")
        for function, refused in self._rows:
            title = (function.__doc__ or function.__name__).strip()
            if chosen in title:
                _result(title, function, refused).tell()


def _result(title: str, function: Callable[[], object], refused: Refused | None) -> Result:
    try:
        made = function()
        if inspect.iscoroutine(made):
            asyncio.run(made)
    except Exception as error:
        if refused and names(error, refused.field):
            return Result(title, EXPLAINED, f"`{refused.field}` is refused: {refused.why}")
        return Result(title, FAILED, _told(error))
    if refused:
        return Result(title, FAILED, f"`{refused.field}` was to be refused, and was not")
    return Result(title, PASSED)


@contextmanager
def raises(kind: type[BaseException]) -> Iterator[Any]:
    """As pytest's, which not every client brings: `error` of what it gives is what was raised."""
    caught = SimpleNamespace(error=None)
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def names(error: BaseException, field: str) -> bool:
    """Whether an error, or one that it stands for, is a 400 of the server that names the field."""
    for one in chain(error):
        param = getattr(one, "param", None)
        if param is None and isinstance(body := getattr(one, "body", None), dict):
            param = body.get("param", (body.get("error") or {}).get("param"))
        if getattr(one, "status_code", None) == 400 and (str(param).startswith(field) or field in str(one)):
            return True
    return False


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _told(error: BaseException) -> str:
    """What went wrong and in which line of the row, in short."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "tests/clients" in f.filename]
    at = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}{at}"
