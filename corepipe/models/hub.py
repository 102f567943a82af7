"""Sources of models: a local path, packages of the Python package index, or the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from corepipe.errors import DISK_FULL, UserError
from corepipe.models.packaged import PACKAGED, PackagedModel, Terms, is_there

if TYPE_CHECKING:
    from corepipe.models.package_fetch import Progress

DEFAULT_MODEL = "smollm2-135m-instruct"
HUB_FILES = ("*.safetensors", "*.json", "tokenizer*", "vocab.txt", "merges.txt", "*.gguf", "*.jinja")


def cache_dir() -> Path:
    """Returns COREPIPE_CACHE, or corepipe under XDG_CACHE_HOME, or ~/.cache/corepipe."""
    if chosen := os.environ.get("COREPIPE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corepipe"


def resolve(name: str | Path, progress: Progress | None = None, *, accepted: bool = False) -> Path:
    """Returns the local path of a model, after fetching it where necessary.

    `name` is a file or directory, the name of a packaged model (`smollm2-135m-instruct`), or a hub id
    (org/name, or org/name@revision). Raises UserError where it names no model, the model cannot be fetched,
    or it has terms that are not `accepted`.
    """
    report = progress or _silent
    if str(name) and Path(name).exists():
        return Path(name)
    text = str(name)
    if (terms := terms_to_accept(text)) is not None and not accepted:
        raise UserError(
            f"{text}: is not fetched, and has terms to accept ({terms.address}): run corepipe pull {text}",
            "model",
        )
    if (model := _packaged(text)) is not None:
        from corepipe.models.package_fetch import fetch  # noqa: PLC0415 -- rarely needed

        return fetch(model, text.lower(), _folder(text), report)
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w-][\w.-]*)?", text) and ".." not in text:
        return _from_hub(text, report)
    raise UserError(f"{text}: {_why_unknown(text)}", "model")


def _why_unknown(name: str) -> str:
    """Explains why nothing can be fetched by a name, and what to give instead."""
    from corepipe.models import published  # noqa: PLC0415 -- needed for unknown names alone

    try:
        shape = published.resolve(name)
    except UserError:
        return f"no such file or directory, nor a known model ({', '.join(PACKAGED)}, or org/name@revision)"
    return (
        "has a known shape, enough for plan, simulate and profile, but no weights; give a directory or .gguf "
        f"file with them, or org/name@revision. --timing-model {shape} gives another model its times"
    )


def terms_to_accept(name: str) -> Terms | None:
    """Returns the terms to accept before a model is fetched; None where it has none, or is there already."""
    model = None if name and Path(name).exists() else _packaged(name)
    return None if model is None or is_there(model, _folder(name)) else model.terms


def _packaged(name: str) -> PackagedModel | None:
    return PACKAGED.get(name.lower())


def _folder(name: str) -> Path:
    return cache_dir() / "models" / name.lower()


def _silent(what: str, done: float) -> None:
    """Reports no progress."""


def _from_hub(name: str, report: Progress) -> Path:
    """Fetches a snapshot into huggingface_hub's own cache; no pickles, no code."""
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
    """Returns which number of DISK_FULL an error has, or the error that caused it; None for others."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _hub_cache() -> Path:
    from huggingface_hub import constants  # noqa: PLC0415 -- slow, and rarely needed

    return Path(constants.HF_HUB_CACHE)
