"""PEFT directories of random adapters, in numpy, and models with such adapters merged into their tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from corepipe.models.adapters.adapter import Adapter, adapter_of
from corepipe.models.registry import Model
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.low_rank import LowRank
from corepipe.neuron.ops import Linear

F32 = np.ndarray
PREFIX = "base_model.model."


@dataclass(frozen=True)
class Peft:
    """An adapter as PEFT saves it: its configuration, and a and b of each module."""

    config: dict[str, Any]
    modules: Mapping[str, tuple[F32, F32]]
    also: dict[str, F32] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Writes the directory and returns it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.config), encoding="utf-8")
        tensors = {
            f"{PREFIX}{module}.lora_{letter}.weight": values
            for module, pair in self.modules.items()
            for letter, values in zip("AB", pair, strict=True)
        }
        save_file({**tensors, **self.also}, folder / "adapter_model.safetensors")
        return folder


def config(rank: int, **others: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", **others}


def pair(rng: np.random.Generator, rank: int, n: int, k: int, size: float = 0.5) -> tuple[F32, F32]:
    """Returns a [rank, k] and b [n, rank] whose product changes rows as much as `size` of a matrix's."""
    a = rng.standard_normal((rank, k)) / np.sqrt(k)
    b = rng.standard_normal((n, rank)) * size / np.sqrt(rank)
    return a.astype(np.float32), b.astype(np.float32)


def modules_of(model: Model, graph: Graph) -> dict[str, tuple[str, bool]]:
    """Returns the tensors of the checkpoint that Linears read, by module, and whether they are [in, out]."""
    found = {}
    for op in graph.ops:
        if isinstance(op, Linear) and op.weight.name not in graph.tied:
            source = model.checkpoint._source(op.weight.name)
            found[source.tensor.removesuffix(".weight")] = (source.tensor, source.transposed)
    return found


def random_peft(model: Model, graph: Graph, rank: int, seed: int = 0) -> Peft:
    """Returns an adapter of every module with Linears, under the names of the checkpoint's tensors."""
    rng = np.random.default_rng(seed)
    pairs = {}
    for module, (tensor, transposed) in modules_of(model, graph).items():
        shape = model.checkpoint._stored.shape(tensor)
        pairs[module] = pair(rng, rank, *(shape[::-1] if transposed else shape))
    return Peft(config(rank), pairs)


def merged(model: Model, graph: Graph, peft: Peft, folder: Path) -> Path:
    """Writes the model with an adapter merged into its tensors, as PEFT's `merge_and_unload` computes it."""
    scale = peft.config["lora_alpha"] / peft.config["r"]
    tensors = load_file(model.path / "model.safetensors")
    for module, (tensor, transposed) in modules_of(model, graph).items():
        a, b = (values.astype(np.float64) for values in peft.modules[module])
        change = scale * (b @ a)
        tensors[tensor] = (tensors[tensor] + (change.T if transposed else change)).astype(np.float32)
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes((model.path / "config.json").read_bytes())
    save_file(tensors, folder / "model.safetensors")
    return folder


def random_adapter(graph: Graph, rank: int, seed: int) -> Adapter:
    """Returns an adapter of all Linears of a graph."""
    rng = np.random.default_rng(seed)
    shapes = {op.weight.name: op.weight.shape for op in graph.ops if isinstance(op, Linear)}
    return adapter_of({name: LowRank(*pair(rng, rank, *shape), 2.0) for name, shape in shapes.items()})
