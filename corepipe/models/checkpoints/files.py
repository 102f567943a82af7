"""Reads a model's files with limits: regular files, inside the model's directory, of bounded size."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from corepipe.errors import UserError, shown

CHAT_TEMPLATES = "additional_chat_templates"
"""The directory inside a model's directory that holds chat templates by name."""
SNAPSHOTS, BLOBS = "snapshots", "blobs"
"""Folders of huggingface_hub's cache: models--org--name/snapshots/revision/file links to ../../blobs/hash."""


def check_links(folder: Path) -> None:
    """Raises UserError for a symbolic link in a model's directory, or just below it, that leads out of it.

    The directory is untrusted input: a file that it names elsewhere would be read with the rights of this
    process.
    """
    homes = _homes(folder.resolve())
    inner = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    for file in sorted(file for place in (folder, *inner) for file in place.iterdir()):
        target = Path(os.path.realpath(file))  # unlike resolve, this accepts a link to itself
        if file.is_symlink() and not any(target.is_relative_to(home) for home in homes):
            raise UserError(
                f"{shown(file, 200)}: is a link out of the model's directory; copy the file there"
            )


def _homes(folder: Path) -> tuple[Path, ...]:
    """Returns where the files of a directory may be: in it, or among the blobs of its hub cache."""
    if folder.parent.name == SNAPSHOTS:
        return folder, folder.parent.parent / BLOBS
    return (folder,)


def regular_size(file: Path) -> int:
    """Returns the bytes of a regular file. Raises UserError for pipes and devices, which may never end."""
    try:
        status = file.stat()
    except (OSError, ValueError) as error:
        raise unreadable(file, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{shown(file, 200)}: is not a regular file")
    return status.st_size


def read_bytes(file: Path, most: int, what: str) -> bytes:
    """Reads a whole file of up to `most` bytes; raises UserError for a larger one, which cannot be `what`."""
    if regular_size(file) > most:
        raise UserError(f"{file}: larger than {most} bytes, not {what}")
    try:
        with file.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: OSError | ValueError) -> UserError:
    return UserError(f"{shown(file, 200)}: cannot be read: {getattr(error, 'strerror', None) or error}")
