"""Tries a tokenizer.json with unknown patterns in a process that can be ended, before it is trusted.

The library's regular expressions backtrack, and its limit is ten million steps for each place where a match
may begin: a malicious pattern takes minutes over a line of text, and nothing can interrupt it. Known patterns
are not tried. `python -m corepipe.models.text.tokenizer_trial DIRECTORY SECONDS` is the trial.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from corepipe.errors import UserError
from corepipe.models.checkpoints.files import read_bytes
from corepipe.models.text.directory_tokenizer import MAX_TOKENIZER_BYTES, from_directory
from corepipe.models.text.gguf_splits import SPLITS
from corepipe.sandbox import ENVIRONMENT

MODULE = "corepipe.models.text.tokenizer_trial"
CPU_SECONDS = 10
"""Enough to load a large vocabulary (2 s) and encode all texts (0.1 s), on a slow machine."""
WALL_SECONDS = 120.0
MAX_MEMORY = 4 << 30
LENGTH = 2000
UNITS = (*"aA1 \n\t._'-/\u00e9\u4e2d", "aA", "a1", "a ", "a.", "\r\n")
"""Characters that patterns distinguish; long runs before another end make a bad pattern backtrack."""


def try_tokenizer(folder: Path) -> None:
    """Raises UserError where the tokenizer of a directory does not encode odd texts in a short time.

    A directory without tokenizer.json, or with known patterns only, is not tried.
    """
    file = folder / "tokenizer.json"
    if not file.is_file() or not _unknown_patterns(file):
        return
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(  # noqa: S603 -- our own interpreter and module
            [sys.executable, "-P", "-m", MODULE, str(folder), str(CPU_SECONDS)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            start_new_session=True,
            timeout=WALL_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return
        if done.returncode != -signal.SIGXCPU:
            raise UserError(f"{file}: the tokenizer fails on some texts ({done.returncode})")
    raise UserError(
        f"{file}: the tokenizer takes more than {CPU_SECONDS} s over short texts: a pattern backtracks"
    )


def _unknown_patterns(file: Path) -> set[str]:
    known = {pattern for split in SPLITS.values() for pattern in split}
    try:
        described = json.loads(read_bytes(file, MAX_TOKENIZER_BYTES, "a tokenizer"))
    except (ValueError, RecursionError):
        return set()  # its reader gives the better error
    return {pattern for part in _parts(described) for pattern in _patterns(part)} - known


def _parts(described: object) -> Iterator[object]:
    """Yields all parts but the model, which is large and has no patterns."""
    if isinstance(described, dict):
        yield from (part for name, part in described.items() if name not in ("model", "added_tokens"))


def _patterns(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("Regex"), str):
            yield part["Regex"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _patterns(inner)


def main(folder: Path, cpu_seconds: int) -> None:
    """Encodes and decodes the texts; the kernel ends the process where that takes too long."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    with suppress(OSError, ValueError):  # on systems without this limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    tokenizer = from_directory(folder)
    for unit in UNITS:
        for end in ("", "!", "\0"):
            tokenizer.decode(tokenizer.encode(unit * (LENGTH // len(unit)) + end))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
