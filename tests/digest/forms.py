"""The neutral form of a model's Programs, packed: each distinct layer once, and which core runs it how often.

Knows nothing of corepipe: plain JSON-able data in and out.  An entry is
- model: the properties of the whole graph;
- rotations: rotary tables by the hash of their content;
- blocks: lists of Ops by the hash of their content; in tensors' names `*` stands for a layer's number;
- replicas: by format and placement, the cores with their `runs`: [block, first layer, how many layers, number
in the names of the first layer's tensors (null: none), by how much it grows].

An Op is {op, out, the values it reads, its weights, its other parameters}.  A value that is read was made by
the Op so many `back` on the same core, or, further than a layer away, by the core's Op of number `op`.  A
weight's dimension is [axis, size, part]: "whole", "cut" (the core's `cuts` of that axis), or the ranges
themselves; a range is [start, length], -1 being zeros.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

Json = Any
"""A JSON value: dicts with strings as keys, lists, strings, numbers, booleans, None."""

TRANSFERS = ("send", "receive")

WITHOUT_REFERENCES = 2
"""The version of marshal whose bytes depend on what a value is, not on which of its parts are one object."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True)


def canonical(value: Json) -> str:
    """Returns the one text of a value; floats are written so that they read back to the bit."""
    return _ENCODER.encode(value)


def content_id(value: Json) -> str:
    """Returns a short name for a value, by its content."""
    return _content_id(marshal.dumps(value, WITHOUT_REFERENCES))


@cache
def _content_id(marshalled: bytes) -> str:
    """Returns the name, cached by marshalled bytes: layers and rotary tables recur, and their text costs more
    than these bytes."""
    return hashlib.sha256(canonical(marshal.loads(marshalled)).encode()).hexdigest()[:12]


class Blocks:
    """Collects the distinct layers, and tables that Ops refer to, while Programs are packed."""

    def __init__(self) -> None:
        self.blocks: dict[str, Json] = {}
        self.rotations: dict[str, Json] = {}

    def rotation(self, table: Json) -> str:
        """Stores a rotary table, and returns its name."""
        name = content_id(table)
        self.rotations[name] = table
        return name

    def runs(self, ops: Iterable[tuple[int, Json]]) -> list[list[Json]]:
        """Packs a core's (layer, Op) pairs."""
        runs: list[list[Json]] = []
        for (layer, _), pairs in groupby(ops, key=lambda pair: (pair[0], pair[1]["op"] in TRANSFERS)):
            section, number = _starred([op for _, op in pairs])
            name = content_id(section)
            self.blocks[name] = section
            if not (runs and _prolonged(runs[-1], name, layer, number)):
                runs.append([name, layer, 1, number, 0])
        return runs


def _prolonged(run: list[Json], name: str, layer: int, number: int | None) -> bool:
    """Adds a layer to a run, if it continues it."""
    block, first, count, start, step = run
    if (block, first + count) != (name, layer) or (start is None) != (number is None):
        return False
    if number is not None:
        grown = number - (start + (count - 1) * step)
        if count > 1 and grown != step:
            return False
        run[4] = grown
    run[2] += 1
    return True


def tensors(ops: Iterable[Json]) -> Iterator[Json]:
    """Yields all weights of Ops: every part of them with a tensor's name."""
    for op in ops:
        for part in op.values():
            for weight in part if isinstance(part, list) else [part]:
                if isinstance(weight, dict) and "tensor" in weight:
                    yield weight


def _starred(ops: list[Json]) -> tuple[list[Json], int | None]:
    """Returns the Ops with * for the number that most of their tensors' names have, and that number."""
    numbers = Counter(n for weight in tensors(ops) if (n := _number(weight["tensor"])) is not None)
    if not numbers:
        return ops, None
    most = max(numbers, key=lambda n: (numbers[n], n))
    for weight in tensors(ops):
        if _number(weight["tensor"]) == most:
            weight["tensor"] = _replaced(weight["tensor"], str(most), "*")
    return ops, most


@cache
def _number(tensor: str) -> int | None:
    return next((int(part) for part in tensor.split(".") if part.isdecimal()), None)


def _replaced(tensor: str, old: str, new: str) -> str:
    """Returns the name with its first part `old` replaced."""
    parts = tensor.split(".")
    parts[parts.index(old)] = new
    return ".".join(parts)


def reduced(entry: Mapping[str, Json], names: Iterable[str]) -> Json:
    """Returns the entry with only some of its replicas."""
    replicas = {name: entry["replicas"][name] for name in names}
    runs = [run for replica in replicas.values() for core in replica.get("cores", ()) for run in core["runs"]]
    blocks = {name: entry["blocks"][name] for name, *_ in runs}
    used = {op["rotation"] for ops in blocks.values() for op in ops if "rotation" in op}
    rotations = {name: table for name, table in entry["rotations"].items() if name in used}
    return {**entry, "rotations": rotations, "blocks": blocks, "replicas": replicas}


def unpacked(entry: Mapping[str, Json]) -> Json:
    """Returns the entry with every core's layers written out, which differences and exceptions refer to."""
    replicas = {}
    for name, replica in entry["replicas"].items():
        cores = [_core(entry, core) for core in replica.get("cores", ())]
        replicas[name] = {**replica, "cores": {str(core.pop("core")): core for core in cores}}
    return {"model": entry["model"], "replicas": replicas}


def _core(entry: Mapping[str, Json], core: Mapping[str, Json]) -> dict[str, Json]:
    layers: dict[str, list[Json]] = {}
    for block, first, count, start, step in core["runs"]:
        for i in range(count):
            number = None if start is None else start + i * step
            ops = [_op(entry, core, op, number) for op in entry["blocks"][block]]
            layers.setdefault(str(first + i), []).extend(ops)
    rest = {key: part for key, part in core.items() if key not in ("runs", "cuts")}
    return {"layers": layers, **rest}  # the cause of a difference before its consequences


def _op(entry: Mapping[str, Json], core: Mapping[str, Json], op: Json, number: int | None) -> Json:
    """Returns an Op of one layer of one core, with numbers in names, ranges and rotations written out."""
    whole = marshal.loads(marshal.dumps(op))  # a copy, faster than by JSON
    for weight in tensors([whole]):
        if number is not None and "*" in weight["tensor"].split("."):
            weight["tensor"] = _replaced(weight["tensor"], "*", str(number))
        weight["dims"] = [_dim(core["cuts"], dim) for dim in weight["dims"]]
    if "rotation" in whole:
        whole["rotation"] = entry["rotations"][whole["rotation"]]
    return whole


def _dim(cuts: Mapping[str, Json], dim: Sequence[Json]) -> Json:
    axis, size, part = dim
    if part == "whole":
        part = [[0, size]]
    return {"axis": axis, "size": size, "ranges": cuts[axis] if part == "cut" else part}
