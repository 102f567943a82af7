"""Directories of models: which of their entries can be served, and under which names.

A directory is read anew when its time of change is another.  Its content is not trusted: names are looked up
among its entries and never joined to a path, and links out of it are left out.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.gguf_shards import shards, stem_of
from corepipe.models.tasks import TaskInfo

MOST_ENTRIES = 1000
"""Models of a directory that are looked at, in the order of their names."""

FRESH_SECONDS = 1.0
"""The time for which a directory is not read again."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

Signature = tuple[int, ...]
"""Times of change and sizes of the files that say what a model is."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model of a directory.  changed: when its files changed last, in seconds since 1970."""

    name: str
    path: Path
    task: TaskInfo
    changed: int


class ModelsDirectories:
    """The models in some directories; of two with the same name the first counts.  Safe to use from threads.

    `task`: what they are to do, where a model can do several things.
    """

    def __init__(self, roots: Sequence[Path], task: str = "auto") -> None:
        """Raises UserError for what is no directory."""
        for root in roots:
            if not root.is_dir():
                raise UserError(f"--models-dir {root}: no such directory", "models_dirs")
        self._roots = tuple(root.resolve() for root in roots)
        self._task = task
        self._read: dict[Path, tuple[Signature, FoundModel | str]] = {}
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self.found: Mapping[str, FoundModel] = {}
        self.refused: Mapping[str, str] = {}

    def look(self) -> Mapping[str, FoundModel]:
        """Returns the models that can be served, by name; `refused` has the reasons why others cannot."""
        with self._lock:
            if monotonic() - self._looked >= FRESH_SECONDS:
                self._look()
                self._looked = monotonic()
            return self.found

    def _look(self) -> None:
        found: dict[str, FoundModel] = {}
        refused: dict[str, str] = {}
        read: dict[Path, tuple[Signature, FoundModel | str]] = {}
        for name, path in self._entries(refused):
            if name in found:
                continue
            signature = _signature(path)
            known = self._read.get(path)
            one = known[1] if known is not None and known[0] == signature else self._described(name, path)
            read[path] = (signature, one)
            if isinstance(one, str):
                refused[name] = one
            else:
                found[name] = one
        self._read, self.found, self.refused = read, found, refused

    def _entries(self, refused: dict[str, str]) -> Iterator[tuple[str, Path]]:
        """Yields names and paths of what may be models: directories with a model's files, and GGUF files."""
        for root in self._roots:
            try:
                paths = sorted(root.iterdir())[:MOST_ENTRIES]
            except OSError:
                continue  # it was there at the start
            for path in paths:
                name = stem_of(path) if path.suffix == ".gguf" else path.name
                if not _looks_like_a_model(path):
                    continue
                if not Path(os.path.realpath(path)).is_relative_to(root):
                    refused[shown(name, 100)] = "is a link out of the directory"
                elif not _NAME.fullmatch(name):
                    refused[shown(name, 100)] = (
                        "has a name that is none for a model: letters, digits, '.', '_', '-'"
                    )
                else:
                    yield name, path

    def _described(self, name: str, path: Path) -> FoundModel | str:
        """Reads what a model is, but no weights; returns the reason where it cannot be served."""
        from corepipe.models import registry  # noqa: PLC0415 -- slow to import, and servers without a directory need none

        try:
            task = registry.load(path).task(self._task)
            return FoundModel(name, path, task, int(path.stat().st_mtime))
        except UserError as error:
            return error.message
        except Exception as error:  # one broken model must not hide the others
            return f"cannot be read: {type(error).__name__}: {shown(str(error), 200)}"


def _looks_like_a_model(path: Path) -> bool:
    try:
        if path.suffix == ".gguf":
            return path.is_file() and shards(path)[0] == path
        return path.is_dir() and ((path / "config.json").is_file() or any(path.glob("*.gguf")))
    except OSError:
        return False


def _signature(path: Path) -> Signature:
    found = []
    for file in (path, path / "config.json", path / "generation_config.json"):
        try:
            status = file.stat()
        except OSError:
            continue
        found += [status.st_mtime_ns, status.st_size, status.st_ino]
    return tuple(found)
