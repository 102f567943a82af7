"""Fields of a model's configuration files: read with types and bounds; an error names the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.files import read_bytes

MAX_POSITIONS = 1 << 24
MAX_HIDDEN = 1 << 17
MAX_LAYERS = 1 << 10
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 10
MAX_FFN = 1 << 20
MAX_VOCAB = 1 << 22
MAX_JSON_BYTES = 64 * 1024 * 1024


class Fields:
    """Typed access to the keys of a config; every error names the file and the key.

    `shown` renames a key in errors (GGUF spells `hidden_size` as `llama.embedding_length`); `prefix` is the
    path to a nested object, `assumed` the keys that hold a family's default. A key whose value is null counts
    as absent.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, object],
        shown: Mapping[str, str] | None = None,
        prefix: str = "",
        assumed: frozenset[str] = frozenset(),
    ) -> None:
        self.path = path
        self.values = values
        self._assumed = assumed
        self._shown = shown or {}
        self._prefix = prefix

    def error(self, key: str, why: str) -> UserError:
        name = self._prefix + key
        return UserError(f"{self.path}: {shown(self._shown.get(name, name))} {why}")

    def replace(self, key: str, value: object) -> Fields:
        """Returns the same fields with `key` set."""
        assumed = self._assumed - {key}
        return Fields(self.path, {**self.values, key: value}, self._shown, self._prefix, assumed)

    def without(self, *keys: str) -> Fields:
        """Returns the same fields without some keys."""
        kept = {key: value for key, value in self.values.items() if key not in keys}
        return Fields(self.path, kept, self._shown, self._prefix, self._assumed)

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """Returns the fields under Llama's names: `names` maps ours to the config's, which errors show."""
        ours = {ours: self.values[theirs] for ours, theirs in names.items() if theirs in self.values}
        shown = {ours: self._shown.get(theirs, theirs) for ours, theirs in names.items()}
        values, shown = {**self.values, **ours}, {**self._shown, **shown}
        return Fields(self.path, values, shown, self._prefix, self._assumed - ours.keys())

    def defaulting(self, key: str, value: object) -> Fields:
        """Returns the same fields with `key` set where it is absent."""
        if self.has(key):
            return self
        assumed = self._assumed | {key}
        return Fields(self.path, {**self.values, key: value}, self._shown, self._prefix, assumed)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def says(self, key: str) -> bool:
        """Tells whether the config itself has the key, not just a default of the family."""
        return self.has(key) and key not in self._assumed

    def integer(self, key: str, most: int, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f"must be an integer from {least} to {most}, not {shown(value, 60)}")
        return value

    def number(self, key: str, least: float, most: float, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.error(key, f"must be a number from {least:g} to {most:g}, not {shown(value, 60)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {shown(value, 60)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None:
            value = default
        if not isinstance(value, str):
            raise self.error(
                key, "is missing" if value is None else f"must be a string, not {shown(value, 60)}"
            )
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Reads token ids written as one integer, a list of them, or null."""
        value = self.values.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < MAX_VOCAB:
                raise self.error(key, f"must be a token id or a list of them, not {shown(value, 60)}")
        return tuple(items)

    def items(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self.error(key, f"must be a list, not {shown(value, 60)}")
        return value

    def numbers(self, key: str, count: int, least: float, most: float) -> tuple[float, ...]:
        values = self.items(key)
        sound = all(
            isinstance(v, int | float) and not isinstance(v, bool) and least <= v <= most for v in values
        )
        if len(values) != count or not sound:
            raise self.error(key, f"must be a list of {count} numbers from {least:g} to {most:g}")
        return tuple(map(float, values))

    def section(self, key: str) -> Fields | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object, not {shown(value, 60)}")
        return Fields(self.path, value, self._shown, f"{self._prefix}{key}.")

    def refuse(self, *keys: str) -> None:
        """Raises UserError for the first of these keys that is on: they select unsupported variants."""
        for key in keys:
            if self.values.get(key):
                raise self.error(key, "is not supported")

    def require(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(key, f"{value!r} is not supported (known: {', '.join(allowed)})")
        return value


def read_json(path: Path) -> dict[str, object]:
    """Reads the object in a JSON file; raises UserError for anything else."""
    try:
        value = json.loads(read_bytes(path, MAX_JSON_BYTES, "a configuration file"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return value
