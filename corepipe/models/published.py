"""The shapes of public models by name, as their published config.json files have them.

`published.json` maps a name to the keys of its config. An entry with the key `like` is another entry with
some keys changed; `hub` is its repository on the Hugging Face hub; `max_tokens` is the length at which texts
are truncated (`max_seq_length` of its sentence_bert_config.json).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from corepipe.errors import UserError

NEAREST, ALIKE = 3, 0.5
"""The number of similar names that an error suggests, and the least similarity (difflib's ratio)."""

MAKERS = ("meta-", "google-", "openai-", "ibm-")
"""Prefixes that some repositories write before the model's own name."""

TUNING = ("instruct", "chat", "hf", "it", "python")
"""Parts anywhere in a name that say what a model was trained for."""

ENDINGS = (
    *TUNING,
    *("pt", "base", "uncased", "cased", "preview", "beta", "sft", "dpo", "tuned", "distilled", "finetuned"),
    *("original", "sharded", "deduped", "neuron", "gguf", "awq", "gptq", "bf16", "fp16", "fp8", "int8"),
    *("in21k", "discriminator", "generator", "mlm", "mnli", "squad", "squad2", "sst2", "english", "en"),
)
"""Parts at the end of a name that say how a model was trained or stored, not what shape it has."""

VERSION = re.compile(r"v\d+(\.\d+)*|0\.\d|\d{4}|\d+k|\dbit")
"""Parts at the end of a name that tell releases apart."""


@cache
def _entries() -> Mapping[str, Mapping[str, object]]:
    file = Path(__file__).with_name("published.json")
    # ast-grep-ignore: bounded-reads -- a file of this package
    entries: dict[str, dict[str, object]] = json.loads(file.read_text(encoding="utf-8"))
    return entries


@cache
def _by_spelling() -> Mapping[str, str]:
    return {name.replace("-", ""): name for name in _entries()}


@cache
def _by_repository() -> Mapping[str, str]:
    return {str(entry["hub"]).lower(): name for name, entry in _entries().items() if "hub" in entry}


def names() -> tuple[str, ...]:
    """Returns all names, sorted."""
    return tuple(sorted(_entries()))


def config(name: str) -> dict[str, object]:
    """Returns the config of one of `names()`, as a config.json has it. Raises KeyError for other names."""
    entry = dict(_entries()[name])
    for beside in ("hub", "max_tokens"):
        entry.pop(beside, None)
    parent = entry.pop("like", None)
    return config(parent) | entry if isinstance(parent, str) else entry


def hub_id(name: str) -> str | None:
    """Returns the Hugging Face repository of one of `names()`; None where it is not known.

    A name whose entry has nothing but `like` has the repository of that entry.
    """
    entry = _entries()[name]
    known, parent = entry.get("hub"), entry.get("like")
    if known is None and isinstance(parent, str) and set(entry) == {"like"}:
        return hub_id(parent)
    return known if isinstance(known, str) else None


def max_tokens(name: str) -> int | None:
    """Returns the length at which texts for a model are truncated; None where only the positions limit it."""
    found = _entries()[name].get("max_tokens")
    return found if isinstance(found, int) else None


def resolve(source: str) -> str:
    """Finds the one of `names()` that people or model hubs spell as `source`.

    Case, the organisation before a slash, separators, and endings such as -instruct, -hf or -v0.1 are
    ignored, except where two published shapes differ in them. Raises UserError for an unknown name.
    """
    known = _by_spelling()
    for spelling in _spellings(source):
        if spelling in known:
            return known[spelling]
    if source.strip().lower() in _by_repository():
        return _by_repository()[source.strip().lower()]
    near = get_close_matches(plain(source), names(), NEAREST, cutoff=ALIKE)
    hint = f"the nearest names are {', '.join(near)}" if near else "docs/models.md lists their names"
    raise UserError(f"{source!r:.100} is not a file, directory or published model; {hint}", "model")


def _spellings(source: str) -> Iterator[str]:
    """Yields the name without separators, with ever fewer of the parts that do not name a shape."""
    parts = plain(source).split("-")
    essential = [part for part in parts if part not in TUNING]
    yield "".join(parts)
    yield "".join(essential)
    yield from _without_endings(parts)
    yield from _without_endings(essential)


def _without_endings(parts: Sequence[str]) -> Iterator[str]:
    for end in range(len(parts) - 1, 0, -1):
        if not (parts[end] in ENDINGS or VERSION.fullmatch(parts[end])):
            break
        yield "".join(parts[:end])


def plain(source: str) -> str:
    """Returns the name in lower case, without the organisation, with - between the parts."""
    name = source.strip().rstrip("/").rpartition("/")[2].lower()
    name = re.sub(r"[\s_-]+", "-", name).strip("-")
    name = name.replace("sst-2", "sst2")
    for maker in MAKERS:
        name = name.removeprefix(maker)
    return name
