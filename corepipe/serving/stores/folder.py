"""The directory of a store: private, of one server at a time, with the files of rows that have one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Container
from pathlib import Path

from corepipe.errors import UserError

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


class Folder:
    """A store's directory.  path: None makes a temporary one, which `close` removes.

    Raises UserError where it cannot be used, or another server uses it.
    """

    def __init__(self, path: Path | None) -> None:
        self._temporary = path is None
        self.path = Path(tempfile.gettempdir()) if path is None else path
        try:
            if path is None:
                self.path = Path(tempfile.mkdtemp(prefix="corepipe-store-"))
            self.path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            self.files = self.path / "files"
            self.files.mkdir(PRIVATE_FOLDER, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            raise unusable(self.path, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise unusable(self.path, "another server uses it") from error

    @property
    def database(self) -> Path:
        """The database's file, which is made where it is missing: sqlite would let others read it."""
        path = self.path / "store.sqlite"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE))
        return path

    def file(self, name: str) -> Path:
        """Returns the path of a row's file.  name: the id of the row, which the server has made."""
        assert name.replace("_", "").replace("-", "").isalnum()
        return self.files / name

    def remove(self, name: str) -> None:
        """Removes the file of a row that is gone."""
        self.file(name).unlink(missing_ok=True)

    def sweep(self, known: Container[str]) -> None:
        """Removes files without a row: a crash may leave them."""
        for path in self.files.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def unusable(path: Path, reason: str) -> UserError:
    """Returns the error for a directory that cannot be used."""
    return UserError(f"--store-dir {path}: {reason}", "store_dir")
