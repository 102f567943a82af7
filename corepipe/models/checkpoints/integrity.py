"""Verifies a model's files by their hashes.

The known hashes are in a SHA256SUMS beside the files (as coreutils' sha256sum writes it), in the names of
huggingface_hub's cache (blobs are named by their sha256, small files by git's hash), or pinned for a packaged
model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.files import CHAT_TEMPLATES, read_bytes, regular_size, unreadable
from corepipe.models.checkpoints.gguf_shards import shards
from corepipe.models.packaged import PACKAGED
from corepipe.models.sentence_transformers import module_folders

SUMS = "SHA256SUMS"
MAX_SUMS_BYTES = 1 << 22
READ = (".safetensors", ".gguf", ".json", ".jinja", ".model", ".txt")
"""Suffixes of the files of a model's directory that may be read."""
CHUNK = 1 << 22

Progress = Callable[[str, float], None]


def verify(model: Path, progress: Progress) -> None:
    """Compares the files of a model, a directory or a file, with their hashes.

    Raises UserError for the first file that differs, and for one without a known hash.
    """
    folder = model if model.is_dir() else model.parent
    files = sorted(_read_of(folder)) if model.is_dir() else shards(model)
    sums = _sums(folder)
    for number, file in enumerate(files):
        progress("verifying the model's files", number / len(files))
        _compare(file, _known(file, folder, sums))


def _read_of(folder: Path) -> Iterator[Path]:
    """Yields the files of a directory that may be read: its own, its chat templates, and those of
    sentence-transformers' modules in it."""
    templates = folder / CHAT_TEMPLATES
    for place in (folder, *([templates] if templates.is_dir() else []), *module_folders(folder)):
        yield from (file for file in place.iterdir() if file.suffix in READ and not file.is_dir())


def _known(file: Path, folder: Path, sums: Mapping[str, str]) -> str:
    """Returns the known hash of a file: sha256, or git's of 40 digits."""
    name = file.relative_to(folder).as_posix()
    if name in sums:
        return sums[name]
    if file.is_symlink() and re.fullmatch("[0-9a-f]{64}|[0-9a-f]{40}", file.resolve().name):
        return file.resolve().name
    for model, packaged in PACKAGED.items():
        # A lone file is known by its name; names in a directory are shared by many models.
        known = packaged.pinned(name) if not packaged.beside or folder.name == model else None
        if known is not None:
            return known
    raise UserError(
        f"--verify: {shown(file, 200)} has no known hash; where the files are known to be good, "
        f"write theirs down: sha256sum * > {SUMS}",
        "verify",
    )


def _sums(folder: Path) -> dict[str, str]:
    file = folder / SUMS
    if not file.is_file():
        return {}
    lines = read_bytes(file, MAX_SUMS_BYTES, "a list of hashes").decode(errors="replace").splitlines()
    found = {}
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](?:\./)?((?:[^/.][^/]*/)?[^/]+)", line)
        if match is None:
            raise UserError(f"{file}: {shown(line)!r} is no line of sha256sum", "verify")
        found[match[2]] = match[1]
    return found


def _compare(file: Path, known: str) -> None:
    size = regular_size(file)
    # Git hashes a file with its size in front; SHA-1's weakness is for git and the hub to solve.
    digest = (
        hashlib.sha256() if len(known) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    )
    for chunk in _chunks(file):
        digest.update(chunk)
    if digest.hexdigest() != known:
        raise UserError(
            f"--verify: {shown(file, 200)} is not the file that it should be: its hash is "
            f"{digest.hexdigest()}, not {known}",
            "verify",
        )


def _chunks(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except OSError as error:
        raise unreadable(file, error) from error
