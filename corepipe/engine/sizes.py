"""Amounts of memory as users write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

BYTES: Mapping[str, int] = MappingProxyType(
    {name: 1000**power for power, name in enumerate(("kB", "MB", "GB", "TB"), 1)}
    | {name: 1024**power for power, name in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)}
)

_ALIKE: Mapping[str, int] = MappingProxyType(
    {"": 1, "B": 1, "KB": 1000}
    | {name: 1000**power for power, name in enumerate("kmgt", 1)}
    | {name: 1024**power for power, name in enumerate("KMGT", 1)}
    | {f"{name}i": 1024**power for power, name in enumerate("KMGT", 1)}
)
"""Kubernetes' units, and those of vLLM's flags, where a capital letter is a power of 1024."""


def bytes_of(text: str) -> int | None:
    """Reads 1073741824, 1GiB or 1.5 GB; returns None for any other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+) ?([A-Za-z]*)", text.strip())
    unit = None if found is None else {**BYTES, **_ALIKE}.get(found[2])
    return None if found is None or unit is None else round(float(found[1]) * unit)


def read_bytes(value: object) -> object:
    """Returns the bytes of a text; a value that is no text stays as it is. Raises ValueError for other
    texts."""
    if not isinstance(value, str):
        return value
    found = bytes_of(value)
    if found is None:
        raise ValueError(f"{value}: give bytes, as 1073741824, 1GiB or 500MB")
    return found
