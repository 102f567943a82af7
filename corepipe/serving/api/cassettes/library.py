"""The exchanges of a directory, which may be untrusted: limited in size, read once, found by request."""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from corepipe.errors import UserError, shown
from corepipe.serving.api.answering.models import model_of
from corepipe.serving.api.cassettes.exchange import RecordedExchange, RecordedRequest
from corepipe.serving.api.cassettes.file_format import CassetteFile, MalformedCassette, fold, read
from corepipe.serving.api.cassettes.redaction import Redaction
from corepipe.serving.api.http.errors import ApiError

MOST_REQUESTS = 20_000
"""The most recorded requests that are compared."""
MOST_COMPARED = 64 * 1024
"""The most bytes of each request that are compared."""
MOST_LINES = 200
"""The most lines of two requests, from their first difference on, that are compared."""
MOST_SHOWN = 24
"""The most lines of a difference that are shown."""
WIDEST = 160
"""The most characters of a line that are shown."""

_WORD = re.compile(rb'[^\s"{}\[\]:,.]+')


@dataclass(frozen=True, slots=True)
class NearestRequest:
    """The file of a recorded request, and its lines (-) beside those of the other request (+)."""

    file: str
    difference: str


def nearest(request: RecordedRequest, recorded: Mapping[str, RecordedRequest]) -> NearestRequest | None:
    """Returns the request of the same method and path with the most words in common, or None."""
    words = _words(request)
    alike = ((file, one) for file, one in recorded.items() if (one.method, one.path) == _place(request))
    best, best_share = None, -1.0
    for file, one in islice(alike, MOST_REQUESTS):
        others = _words(one)
        share = len(words & others) / (len(words | others) or 1)
        if share > best_share:
            best, best_share = file, share
    return None if best is None else NearestRequest(best, difference(recorded[best], request))


def difference(old: RecordedRequest, new: RecordedRequest) -> str:
    """Returns the lines of the bodies that differ, with the lines around them."""
    before, after = _lines(old), _lines(new)
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    window = slice(max(0, same - 1), same + MOST_LINES)
    rows = list(islice(_rows(before[window], after[window]), MOST_SHOWN + 1))
    if len(rows) > MOST_SHOWN:
        rows[-1] = "…"
    return "\n".join(row if len(row) <= WIDEST else row[:WIDEST] + "…" for row in rows)


def _rows(before: list[str], after: list[str]) -> Iterator[str]:
    lines = difflib.unified_diff(before, after, n=1, lineterm="")
    return ("…" if line.startswith("@@") else line for line in islice(lines, 3, None))


def _place(request: RecordedRequest) -> tuple[str, str]:
    return request.method, request.path


def _words(request: RecordedRequest) -> frozenset[bytes]:
    return frozenset(_WORD.findall(request.body[:MOST_COMPARED]))


def _lines(request: RecordedRequest) -> list[str]:
    head = ["x-corepipe-device: 1"] if request.device else []
    text = msgspec.json.format(request.canonical, indent=2).decode()
    return [*head, *fold(text).split("\n")]


SUFFIX = ".yaml"
MAX_FILE = 32 * 1024 * 1024
"""The most bytes of a cassette."""
MAX_FILES = 100_000
MAX_TOTAL = 512 * 1024 * 1024
"""The most bytes of all cassettes of a directory; they are held in memory."""

_NUMBER = re.compile(r"([0-9]+)")


class CassetteLibrary:
    """Exchanges by request.  Identical requests get them in the order of the file names, then the last again.

    `redaction` is applied to a request before the search, as it was applied before recording.
    """

    def __init__(self, folder: Path, redaction: Redaction) -> None:
        self.folder = folder
        self.models: list[str] = []
        """The names of models in the requests, in the order of the files."""
        self._redaction = redaction
        self._recordings: dict[str, list[CassetteFile]] = {}
        self._taken: dict[str, int] = {}
        self._requests: dict[str, RecordedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, file: str, recording: CassetteFile) -> None:
        """Adds a file.  Raises ApiError if the request's body is no JSON object."""
        request = self._redaction.redacted_request(recording.request)
        self._recordings.setdefault(request.key, []).append(recording)
        self._requests[file] = request
        if request.body:
            model = model_of(request.body)
            if model and model not in self.models:
                self.models.append(model)

    def take(self, request: RecordedRequest) -> RecordedExchange | None:
        """Returns the next exchange of a request, or None.  Raises ApiError as `RecordedRequest.key` does."""
        key = self._redaction.redacted_request(request).key
        found = self._recordings.get(key)
        if found is None:
            return None
        number = self._taken.get(key, 0)
        self._taken[key] = min(number + 1, len(found) - 1)
        return found[number].exchange()

    def nearest(self, request: RecordedRequest) -> NearestRequest | None:
        """Returns the most similar request of the same method and path, or None."""
        return nearest(self._redaction.redacted_request(request), self._requests)


def read_library(folder: Path, redaction: Redaction, known: Callable[[str, str], bool]) -> CassetteLibrary:
    """Reads all `*.yaml` of a directory; `known`: whether a method and a path belong to a recorded endpoint.

    Raises UserError that names the file at fault.
    """
    library, total = CassetteLibrary(folder, redaction), 0
    names = _names(folder)
    with _opened(folder) as opened:
        for name in names:
            try:
                data = _read(opened, name)
                total += len(data)
                if total > MAX_TOTAL:
                    raise MalformedCassette(f"the directory holds more than {MAX_TOTAL} bytes")
                recording = read(data, MAX_FILE)
                request = recording.request
                if not known(request.method, request.path):
                    raise MalformedCassette(f"{request.method} {shown(request.path)} is not replayed")
                library.add(name, recording)
            except (MalformedCassette, ApiError) as error:
                raise _wrong(folder / name, shown(str(error), 300)) from error
            except OSError as error:
                raise _wrong(folder / name, os.strerror(error.errno or 0)) from error
    return library


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Opens a directory; with its descriptor, ten thousand files open faster than by their paths."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _wrong(folder, os.strerror(error.errno or 0)) from error
    try:
        yield opened
    finally:
        os.close(opened)


def _names(folder: Path) -> Sequence[str]:
    """Returns the names of the cassettes, sorted; runs of digits are compared as numbers."""
    try:
        names = list(_listed(folder))
    except OSError as error:
        raise _wrong(folder, os.strerror(error.errno or 0)) from error
    return sorted(names, key=_natural)


def _listed(folder: Path) -> Iterator[str]:
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(SUFFIX) or entry.name.startswith("."):
                continue
            if not entry.is_file(follow_symlinks=False):
                raise _wrong(folder / entry.name, "is not a regular file")
            count += 1
            if count > MAX_FILES:
                raise _wrong(folder, f"holds more than {MAX_FILES} files")
            yield entry.name


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Returns the sort key of a name: its runs of digits as numbers."""
    parts = [part.lstrip("0") if at % 2 else part for at, part in enumerate(_NUMBER.split(name))]
    return [(len(part) if at % 2 else 0, part) for at, part in enumerate(parts)], name


def _read(folder: int, name: str) -> bytes:
    """Reads a regular file of an open directory.  Raises MalformedCassette and OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, dir_fd=folder)
    try:  # without a file object: ten thousand of them take a while
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise MalformedCassette("is not a regular file")
        if status.st_size > MAX_FILE:
            raise MalformedCassette(f"is larger than {MAX_FILE} bytes")
        return _whole(file, status.st_size)
    finally:
        os.close(file)


def _whole(file: int, size: int) -> bytes:
    """Reads `size` bytes of a file; fewer if it has become shorter."""
    data = os.read(file, size)
    while len(data) < size and (more := os.read(file, size - len(data))):
        data += more
    return data


def _wrong(file: Path, what: str) -> UserError:
    return UserError(f"--replay {shown(file, 200)}: {what}", "replay")
