"""Comparison of a result with an older one: the ratio of each figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from corepipe.errors import UserError

MEASURED = ("_ms", "_throughput", "_goodput", "_rate", "_share", "duration", "completed", "failed")
"""Suffixes of the keys that are compared."""


def load_result(path: Path) -> dict[str, Any]:
    """Loads a result that --json printed or --output wrote, or one of vLLM's benchmark.  Raises UserError."""
    file = path / "result.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--compare {path}: {error.strerror}", "compare") from error
    except ValueError as error:
        raise UserError(f"--compare {path}: is not JSON ({error})", "compare") from error
    if not isinstance(document, dict) or "request_throughput" not in document:
        raise UserError(f"--compare {path}: no result of corepipe bench --json or of vllm bench", "compare")
    return document


def compared(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns {key: {old, new, ratio}} for the figures in both results; ratio: new / old."""
    return {name: {"old": a, "new": b, "ratio": b / a} for name, a, b in _pairs(new, old)}


def _pairs(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    for name, value in new.items():
        before = old.get(name)
        if name.endswith(MEASURED) and _number(value) and _number(before) and before:
            yield name, float(before), float(value)


def differences(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[str]:
    """Yields the settings that differ, so that ratios are read with care."""
    for name in ("model_id", "endpoint_type"):
        if name in old and old[name] != new[name]:
            yield f"{name}: {new[name]} now, {old[name]} then"
    then = old.get("workload")
    if isinstance(then, Mapping):
        for name, value in new["workload"].items():
            if name in then and then[name] != value:
                yield f"workload.{name}: {_described(value)} now, {_described(then[name])} then"


def _described(value: object) -> str:
    return "none" if value in {None, ""} else str(value)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
