"""The requests for which the digest was frozen.  The parts repeat them: this module is for writing them
only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

from corepipe.models import published
from corepipe.models.registry import Architecture, architecture
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import StepShape
from corepipe.neuron.values import SOURCE, weight_bytes
from tests.digest.forms import Json, canonical
from tests.digest.models import ROOT, TINY, config, family, source

PLACEMENTS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 8))
"""Pipeline and tensor degrees; replicas of a deployment run the same Programs."""
COMPUTED_THEN = {"llama", "mistral", "qwen2", "qwen3"}
"""The families that were computed when the digest was frozen."""
FORMATS_THEN = ("fp32", "bf16", "int8", "int8-weights")
"""The formats that existed then; later ones have no frozen answers, and change none."""
HELD = 1.25
"""Memory per byte of weights for which the tensor degree of a timed deployment is chosen."""


def twins() -> dict[str, str]:
    """Returns every published model, and the tiny ones that tests compute; each with the first model of the
    same config."""
    tiny = (str(path.parent.relative_to(ROOT)) for path in TINY.glob("*/config.json"))
    first: dict[str, str] = {}
    return {
        name: first.setdefault(canonical(config(name)), name) for name in (*published.names(), *sorted(tiny))
    }


def replicas(model: str) -> Json:
    """Returns the replicas of a model: bf16 in every placement; int8, whose groups are cut otherwise, in
    some; all formats for computed families."""
    computed = family(model) in COMPUTED_THEN
    asked = [("bf16", *place) for place in PLACEMENTS] + [
        ("int8", *place) for place in ((1, 1), (2, 1), (1, 8))
    ]
    asked += [("fp32", 1, 1), ("int8-weights", 1, 1)]
    if computed:
        asked += [(fmt, 1, 2) for fmt in ("int8", "int8-weights", "fp32")] + [("bf16", 1, 3), ("int8", 2, 3)]
    return {
        f"{fmt} pipeline {pipeline} tensor {tensor}": {"format": fmt, "pipeline": pipeline, "tensor": tensor}
        for fmt, pipeline, tensor in asked
    }


def timed(model: str) -> Json:
    """Returns deployments and steps: every generation of chips, each with software of its own."""
    found = architecture(source(model))
    inf2, trn1, trn2 = (_tensor(found, name) for name in ("inf2.48xlarge", "trn1.32xlarge", "trn2.48xlarge"))
    layers = found.graph(FORMATS["bf16"]).num_layers
    deep = min(layers, 2)
    rows = {name: {"rows": _rows(shape)} for name, shape in _steps(found)}
    deployments = [
        _deployment("inf2.48xlarge", "bf16", (1, inf2, 1), "async", None),
        _deployment("inf2.48xlarge", "int8", (deep, min(inf2, 6), 2), "ideal", None),
        _deployment("trn1.32xlarge", "bf16", (1, trn1, 1), "vllm-neuron", 32),
        _deployment(
            "trn2.48xlarge", "int8-weights", (1, trn2, 2 if 2 * trn2 <= 64 else 1), "vllm-host-sampling", 4
        ),
        _deployment("inf1.24xlarge", "fp32", (min(layers, 4), 1, 1), "neuroncore-pipeline", None),
    ]
    return {_title(d): {"deployment": d, "steps": rows} for d in deployments}


def _deployment(
    instance: str, fmt: str, place: tuple[int, int, int], profile: str, batch: int | None
) -> Json:
    degrees = dict(zip(("pipeline", "tensor", "data"), place, strict=True))
    return {"instance": instance, "format": fmt, **degrees, "profile": profile, "batch": batch}


def _title(deployment: Json) -> str:
    degrees = " ".join(f"{name} {deployment[name]}" for name in ("pipeline", "tensor", "data"))
    return f"{deployment['instance']} {deployment['format']} {degrees} {deployment['profile']}"


def _tensor(model: Architecture, name: str) -> int:
    """Returns the smallest degree whose memory holds the weights in bf16, or the largest degree."""
    found: Instance = find_instance(name)
    graph = model.graph(FORMATS["bf16"])
    wanted = HELD * sum(weight_bytes(spec.shape, spec.role, graph.format) for spec in graph.weights())
    degrees = [d for d in found.tensor_degrees if d <= max(1, graph.attention_heads)]
    core = found.bank_bytes / found.cores_per_bank
    return next((degree for degree in degrees if degree * core >= wanted), degrees[-1])


def _steps(model: Architecture) -> Iterator[tuple[str, StepShape]]:
    graph = model.graph(FORMATS["bf16"])
    longest = graph.max_positions
    source = min(128, longest) if SOURCE in graph.rows else 0
    if not graph.causal:
        short = min(128, longest)
        yield f"1 of {short}", StepShape.of([(0, short)], 1)
        yield f"8 of {short}", StepShape.of([(0, short)] * 8, 8)
        yield f"1 of {min(512, longest)}", StepShape.of([(0, min(512, longest))], 1)
        return
    near, far, half = (min(n, longest) for n in (256, 1024, 512))
    yield f"decode 1 at {near}", StepShape.decode(1, near)
    yield f"decode 32 at {far}", StepShape.decode(32, far)
    prefill = StepShape.of([(0, half)], 1)
    yield f"prefill {half}", prefill._replace(counts=(*prefill.counts, source))
    yield "mixed", StepShape.of([(near - 1, 1)] * 8 + [(half // 2, half // 4)], 9)


def _rows(shape: StepShape) -> list[int]:
    return [
        shape.rows,
        shape.sequences,
        shape.kv_tokens,
        shape.attended,
        shape.logit_rows,
        shape.rows_of(SOURCE.number),
    ]


def answered() -> dict[str, Json]:
    """Returns every computed family, on every kind of placement, in every format."""
    places = {"plain": (1, 1, 1), "pipeline 2": (2, 1, 1), "tensor 2": (1, 2, 1), "data 2": (1, 1, 2)}
    entries = {}
    for path, fmt, place in product(sorted(TINY.glob("*/golden.json")), FORMATS_THEN, places):
        degrees = dict(zip(("pipeline", "tensor", "data"), places[place], strict=True))
        prompts = json.loads(path.read_text(encoding="utf-8"))["prompts"]
        name = f"{path.parent.name} {fmt} {place}"
        entries[name] = {
            "model": str(path.parent.relative_to(ROOT)),
            "format": fmt,
            **degrees,
            "prompts": prompts,
        }
    return entries
