"""The software that each command assumes around a model without --profile, and a line on it."""

from __future__ import annotations

from enum import StrEnum

from corepipe.neuron.chips.runtime_profile import RuntimeProfile, in_words
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import InputKind


class GraphKind(StrEnum):
    """Models of which some commands assume other software.  Images are all of one size."""

    DECODER = "decoder"
    ENCODER = "encoder"
    IMAGES = "images"

    @classmethod
    def of(cls, graph: Graph) -> GraphKind:
        reads = {part.kind for part in graph.inputs}
        if not reads.isdisjoint({InputKind.PATCHES, InputKind.PIXELS}):
            return cls.IMAGES
        return cls.DECODER if graph.causal else cls.ENCODER


SIMULATE, PROFILE, LADDER = "simulate", "profile", "profile --ladder"

ASSUMED = {
    SIMULATE: {
        GraphKind.DECODER: "vllm-neuron",
        GraphKind.ENCODER: "traced",
        GraphKind.IMAGES: "data-parallel",
    },
    PROFILE: dict.fromkeys(GraphKind, "async"),
    LADDER: {
        GraphKind.DECODER: "vllm-neuron",
        GraphKind.ENCODER: "data-parallel",
        GraphKind.IMAGES: "data-parallel",
    },
}
"""Command -> the profile that it takes."""


def software(profile: RuntimeProfile, graph: Graph | None = None) -> str:
    """The profile and what it pads; where it was assumed for the model of `graph`, also which profile each
    command assumes: their figures differ by them."""
    said = f"software profile {profile.name} {in_words(profile)}"
    if graph is None:
        return said
    taken = ", ".join(
        f"{command} assumes {profiles[GraphKind.of(graph)]}" for command, profiles in ASSUMED.items()
    )
    return f"{said}; without --profile, {taken}"
