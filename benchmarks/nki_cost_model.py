"""The cost model's Ops beside the same written in NKI and simulated, as a table.

    python benchmarks/nki_cost_model.py [--write]

Each kernel of examples/nki is compared with its Op and simulated on one NeuronCore of trn1, at sizes of a
model: what `--kernel` does.  --write: puts the table into docs/prediction.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.rates import core_rates
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.step import StepShape
from corepipe.nki.ops.given import CONTRACTS
from corepipe.nki.ops.kernels import ModelKernels

ROOT = Path(__file__).parents[1]
PAGE, BEGIN, END = ROOT / "docs" / "prediction.md", "<!-- nki ops -->\n", "<!-- end nki ops -->"
LONGEST = 4096
HEAD = (
    "| Op | of | step | cost model, us | bound by | kernel, us | bound by | kernel / cost model | "
    "HBM bytes, cost model | kernel |\n|---|---|---|---|---|---|---|---|---|---|"
)
PROMPTS = tuple(StepShape.of([(0, rows)], 1) for rows in (128, 512, 2048))
ANSWERS = tuple(StepShape.decode(sequences, 512) for sequences in (1, 16))


@dataclass(frozen=True)
class Case:
    """A kernel in the place of an Op of a model, on one core of `tensor`."""

    op: str
    kernel: str
    model: str
    tensor: int
    shapes: tuple[StepShape, ...]


CASES = (
    Case("rmsnorm", "rmsnorm.py:rmsnorm", "llama-3.1-8b", 8, (*ANSWERS, *PROMPTS)),
    Case("swiglu", "swiglu.py:swiglu", "llama-3.1-8b", 8, (*ANSWERS, *PROMPTS)),
    Case("attention", "attention.py:attention_prompt", "llama-3.1-8b", 8, PROMPTS),
    Case("attention-decode", "attention.py:attention_decode", "llama-3.1-8b", 8, ANSWERS),
    Case("scan", "scan.py:scan_5", "mamba2-130m", 1, PROMPTS),
    Case("scan-decode", "scan_decode.py:scan_decode", "mamba2-130m", 1, ANSWERS),
    Case("experts", "experts.py:experts", "mixtral-8x7b", 8, PROMPTS[1:]),
)


def rows(case: Case) -> Iterator[str]:
    """Yields a case's lines of the table."""
    fmt, profile, where = FORMATS["bf16"], PROFILES["vllm-neuron"], instance("trn1.32xlarge")
    graph = architecture(case.model).graph(fmt, LONGEST)
    program = compile_for_timing(graph, Placement(tensor=case.tensor))[0]
    kernels = ModelKernels([f"{case.op}={ROOT / 'examples' / 'nki' / case.kernel}"], graph)
    op = next(op for op in program.ops if type(op) is CONTRACTS[case.op].kinds)
    core, cores = where.chip.core.version, tuple(range(case.tensor))
    rates = core_rates(
        where,
        fmt,
        cores,
        sharing=1,
        read_share=1,
        constants=profile.constants_of(core),
        attention=profile.attention,
    )
    cost = op.cost(fmt, rates)
    kernel = kernels.cost(op, cost, fmt, (core, where.lnc))
    for shape in case.shapes:
        own, run = cost.engines(shape), kernel.engines(shape)
        yield (
            f"| `{case.op}` | {case.model}, tensor {case.tensor} | {in_words(shape)} | "
            f"{own.seconds * 1e6:.1f} | {bound(own)} | {run.seconds * 1e6:.1f} | {bound(run)} | "
            f"{run.seconds / own.seconds:.2f} | {moved(own)} | {moved(run)} |"
        )


def in_words(shape: StepShape) -> str:
    """Returns a step's rows and contexts."""
    if shape.decodes:
        return f"{shape.sequences} answers at {shape.kv_tokens // shape.sequences}"
    return f"prompt of {shape.rows}"


def bound(engines: Engines) -> str:
    """Returns the busiest engine, and its share of the time."""
    busy = {name: getattr(engines, name) for name in ("tensor", "vector", "scalar", "dma")}
    most = max(busy, key=lambda name: busy[name])
    return f"{most} {busy[most] / engines.seconds:.0%}"


def moved(engines: Engines) -> str:
    """Returns bytes read and written."""
    size = engines.read + engines.written
    return f"{size / 1e6:.2f} MB"


def main() -> None:
    """Prints the table, and writes it into the page where that is asked for."""
    lines = [HEAD]
    print(HEAD, flush=True)
    for case in CASES:
        for line in rows(case):
            print(line, flush=True)
            lines.append(line)
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
