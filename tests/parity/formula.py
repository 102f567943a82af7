"""Weights and prompts made from names and shapes alone: the same on every machine, and no file to keep."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

F32 = np.ndarray
WIDTH = 1.0
"""Standard deviation of a matrix's outputs for inputs of 1: with wider ones small errors change scores."""


def uniform(name: str, count: int) -> F32:
    """Returns numbers of [-1, 1) with 24 bits, in float32: hashed counters (the finaliser of SplitMix64)."""
    x = np.arange(count, dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 32)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23)) - np.float32(1)


def weight(name: str, shape: tuple[int, ...]) -> F32:
    """Returns matrices that keep sizes as they are, gains near 1, small biases."""
    values = uniform(name, prod(shape)).reshape(shape)
    if len(shape) > 1:
        return values * np.float32(WIDTH * (3 / shape[-1]) ** 0.5)
    return values * np.float32(0.3) + np.float32("bias" not in name)


def prompt(name: str, count: int, vocab: int) -> list[int]:
    return [int(x) for x in (uniform(f"prompt of {name}", count) + 1) / 2 * vocab]


def write_safetensors(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Writes every tensor of these names and shapes, in fp32, by the formula."""
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            stream.write(weight(name, shape).astype("<f4").tobytes())
