"""The work of `corepipe cache`: prints the cache as a table or a document, and removes parts of it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from corepipe.cli.output.common import errors, print_json, results
from corepipe.cli.output.tables import Figures, size
from corepipe.engine.sizes import BYTES
from corepipe.errors import UserError
from corepipe.models.cache import CacheEntry, RemovalRule, choose, holdings, remove
from corepipe.models.hub import cache_dir

SECONDS: Mapping[str, float] = MappingProxyType({"d": 86400, "h": 3600, "min": 60, "s": 1})


def ls(given: Mapping[str, Any]) -> None:
    """Prints what the cache holds."""
    held = holdings(cache_dir())
    if given["json"]:
        print_json({"cache": str(cache_dir()), **_document(held)})
        return
    _print(held)
    results().print(f"{size(_total(held))} in {cache_dir()}")


def prune(given: Mapping[str, Any]) -> None:
    """Removes what the flags name and prints it.  Raises UserError for flags that name nothing."""
    dry_run, limit = given["dry_run"], _read("--max-size", given["max_size"], BYTES, "2GB")
    age = _read("--older-than", given["older_than"], SECONDS, "30d")
    wanted = RemovalRule(age, None if limit is None else int(limit), given["all"])
    if wanted == RemovalRule():
        raise UserError("say what to remove: --older-than 30d, --max-size 2GB or --all", "all")
    chosen = choose(holdings(cache_dir()), wanted, time.time())
    gone = [one for one in chosen if not one.in_use and (dry_run or remove(one))]
    if given["json"]:
        print_json({"cache": str(cache_dir()), "dry_run": dry_run, **_document(gone)})
    else:
        _print(gone)
        freed = "would be freed" if dry_run else "freed"
        results().print(f"{size(_total(gone))} {freed} in {cache_dir()}")
    for one in chosen:
        if one not in gone:
            errors().print(f"corepipe: kept, as a process uses it: {one.path}")


def _print(held: Sequence[CacheEntry]) -> None:
    if not held:
        return
    table = Figures("what", "model", "format", ">size", ">used", "")
    now = time.time()
    for one in held:
        state = "in use" if one.in_use else ""
        table.add_row(one.kind, one.model, one.format, size(one.nbytes), _ago(now - one.used), state)
    results().print(table)


def _document(held: Sequence[CacheEntry]) -> dict[str, object]:
    return {"bytes": _total(held), "entries": [_entry(one) for one in held]}


def _entry(one: CacheEntry) -> dict[str, object]:
    return {
        "kind": one.kind,
        "model": one.model,
        "format": one.format or None,
        "path": str(one.path),
        "bytes": one.nbytes,
        "last_used": datetime.fromtimestamp(one.used, UTC).isoformat(timespec="seconds"),
        "in_use": one.in_use,
    }


def _total(held: Sequence[CacheEntry]) -> int:
    return sum(one.nbytes for one in held)


def _read(flag: str, text: str | None, units: Mapping[str, float], example: str) -> float | None:
    """Reads a number with one of these units."""
    if text is None:
        return None
    match = re.fullmatch(rf"(\d+(?:\.\d+)?|\.\d+)({'|'.join(units)})", text.strip())
    if match is None:
        raise UserError(
            f"{flag} {text}: give a number with its unit ({', '.join(units)}), as {example}", flag.lstrip("-")
        )
    return float(match[1]) * units[match[2]]


def _ago(seconds: float) -> str:
    unit = next((unit for unit, length in SECONDS.items() if seconds >= length), "s")
    return f"{max(0.0, seconds) / SECONDS[unit]:.0f} {unit} ago"
