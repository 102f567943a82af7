"""An adapter as it is computed: a pair of narrow matrices for each Linear that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from corepipe.neuron.numerics.low_rank import LowRank
from corepipe.neuron.step import AdapterKind


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA adapter for one model.

    digest: SHA-256 of all that it computes with, in hexadecimal: equal for equal adapters, wherever they lie.
    rank: the largest of its layers.  layers: by the name of the Linear's weight in the graph.
    """

    digest: str
    rank: int
    layers: Mapping[str, LowRank]

    @property
    def nbytes(self) -> int:
        """The bytes of its matrices as they are read, in fp32."""
        return sum(layer.nbytes for layer in self.layers.values())

    @property
    def kind(self) -> AdapterKind:
        """The properties that decide its time on the device; a layer of a lower rank counts as one of the
        largest."""
        modules = {name.removesuffix(".weight").rpartition(".")[2] for name in self.layers}
        return AdapterKind(self.rank, tuple(sorted(modules)))


def adapter_of(layers: Mapping[str, LowRank]) -> Adapter:
    """Returns the adapter with these layers."""
    digest = sha256()
    for name, layer in sorted(layers.items()):
        digest.update(f"{name} {layer.a.shape} {layer.b.shape} {layer.scale!r} ".encode())
        digest.update(layer.a.astype("<f4").tobytes())
        digest.update(layer.b.astype("<f4").tobytes())
    return Adapter(digest.hexdigest(), max(layer.rank for layer in layers.values()), layers)
