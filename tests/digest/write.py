"""Writes a new part of times, for the requests below, and refuses any other part.

    python -m tests.digest.write times --recalibrated "constants of v3 fitted to ..."

Run it at the root of the repository.  Programs and tokens were written once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from corepipe.models import published
from corepipe.models.registry import Architecture, architecture
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import StepShape
from corepipe.neuron.values import SOURCE, weight_bytes
from tests.digest import names, parts, times
from tests.digest.forms import Json, canonical
from tests.digest.models import ROOT, TINY, config, source

PROCESSES = 2
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


def time_entry(model: str) -> tuple[str, str]:
    return model, canonical(times.read(model, timed(model)))


def entries() -> dict[str, str]:
    """Returns all entries, by name."""
    known = twins()
    aliases = {name: canonical({"as": twin}) for name, twin in known.items() if name != twin}
    with ProcessPoolExecutor(PROCESSES) as pool:
        return {**aliases, **dict(pool.map(time_entry, sorted(set(known.values())), chunksize=4))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="+", choices=parts.KINDS)
    parser.add_argument("--recalibrated", metavar="REASON", default="", help="why times get a new part")
    parser.add_argument("--directory", type=Path, default=parts.DATA)
    args = parser.parse_args()
    for kind in args.kinds:
        started = time.perf_counter()
        try:
            number = parts.next_number(kind, args.recalibrated, args.directory)
        except parts.PartExists as error:
            sys.exit(f"digest: {error}")
        rows = [[row.kind, row.ours, row.neutral] for row in names.rows()]
        part = parts.Part(kind, number, args.recalibrated, entries(), rows)
        path = parts.write(part, args.directory)
        seconds = time.perf_counter() - started
        print(f"{path.name}: {len(part.entries)} entries, {path.stat().st_size} bytes, {seconds:.0f} s")


if __name__ == "__main__":
    main()
