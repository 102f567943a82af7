"""The cache on disk: fetched models, packed weights and leftovers of killed processes; their removal."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corepipe.errors import UserError
from corepipe.models.hub import cache_dir
from corepipe.models.package_fetch import FETCHING
from corepipe.neuron.host import packed_index
from corepipe.neuron.host.weights import PARTIAL

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An entry of the cache: a model's folder, a file of packed weights, or a leftover of a killed process.

    used: the time of its last use, in seconds since 1970. in_use: a running process holds it.
    """

    kind: Literal["model", "packed weights", "leftover"]
    model: str
    format: str
    path: Path
    nbytes: int
    used: float
    in_use: bool


@dataclass(frozen=True, slots=True)
class RemovalRule:
    """A rule for entries to remove: those unused for `older_than` seconds, the least recently used ones until
    the cache has at most `max_bytes`, or everything. Leftovers are removed in any case."""

    older_than: float | None = None
    max_bytes: int | None = None
    everything: bool = False


def holdings(cache: Path) -> list[CacheEntry]:
    """Lists all entries of the cache, the least recently used first."""
    found = [*_models(cache / "models"), *_packed(cache / "packed")]
    return sorted(found, key=lambda held: held.used)


def choose(held: Sequence[CacheEntry], wanted: RemovalRule, now: float) -> list[CacheEntry]:
    """Selects the entries to remove from a list in order of last use, oldest first; some may be in use."""
    excess = 0 if wanted.max_bytes is None else sum(one.nbytes for one in held) - wanted.max_bytes
    chosen = []
    for one in held:
        old = wanted.older_than is not None and now - one.used > wanted.older_than
        if one.kind == "leftover" or wanted.everything or old or (excess > 0 and not one.in_use):
            chosen.append(one)
            excess -= 0 if one.in_use else one.nbytes
    return chosen


def remove(held: CacheEntry) -> bool:
    """Removes an entry, or returns False where a process uses it. Raises UserError if the OS forbids it."""
    try:
        with ExitStack() as locks:
            for file in _files(held.path):
                if not locks.enter_context(_alone(file)):
                    return False
            if held.path.is_dir() and not held.path.is_symlink():
                shutil.rmtree(held.path)
            else:
                held.path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{held.path}: cannot be removed: {error.strerror}") from error
    return True


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Protects a fetched model from removal while the block runs; ignores paths outside the cache."""
    fetched = path.resolve().is_relative_to((cache_dir() / "models").resolve())
    with ExitStack() as open_files:
        with suppress(OSError):  # without a lock file there is no protection
            for file in _own_files(path) if fetched else ():
                fcntl.flock(open_files.enter_context(file.open("rb")), fcntl.LOCK_SH)
        yield


@contextmanager
def _alone(file: Path) -> Iterator[bool]:
    """Locks a file exclusively while the block runs; yields False where another process holds it."""
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _models(folder: Path) -> Iterator[CacheEntry]:
    for place in _sorted(folder):
        parts = _sorted(place)
        leftovers = [part for part in parts if part.name.startswith(FETCHING)]
        yield from (_held("leftover", place.name, "", left) for left in leftovers)
        if len(parts) > len(leftovers):
            yield _held("model", place.name, "", place)


def _packed(folder: Path) -> Iterator[CacheEntry]:
    for file in _sorted(folder):
        if file.name.startswith(PARTIAL):
            yield _held("leftover", UNKNOWN, "", file)
        elif file.suffix == ".packed":
            yield _held("packed weights", _model_of(file), file.stem.rpartition("-")[0], file)


def _model_of(file: Path) -> str:
    """Reads the model's name from a packed file; files of older versions have none."""
    try:
        with file.open("rb") as opened:
            head = opened.read(packed_index.ALIGNMENT)
        return packed_index.read(head, file.stat().st_size).model or UNKNOWN
    except (OSError, ValueError):
        return UNKNOWN


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _own_files(model: Path) -> list[Path]:
    """Lists a model's files without those that are still being fetched into its folder."""
    return [file for file in _files(model) if not file.parent.name.startswith(FETCHING)]


def _held(
    kind: Literal["model", "packed weights", "leftover"], model: str, fmt: str, path: Path
) -> CacheEntry:
    files = _files(path)
    states = [file.stat() for file in files]
    # A packed file is touched when it is used; for a model only the access time is known.
    times = [s.st_mtime if kind == "packed weights" else max(s.st_mtime, s.st_atime) for s in states]
    used = max(times, default=path.stat().st_mtime)
    return CacheEntry(kind, model, fmt, path, sum(s.st_size for s in states), used, _any_in_use(files))


def _any_in_use(files: Iterable[Path]) -> bool:
    for file in files:
        with suppress(OSError), _alone(file) as free:
            if not free:
                return True
    return False
