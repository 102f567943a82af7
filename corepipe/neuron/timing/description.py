"""The contents of each core of a replica, as /v1/placement reports them."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.neuron.compile.compiler import kv_bytes_per_token, state_bytes, weight_bytes_by_format
from corepipe.neuron.compile.program import Program, of_each
from corepipe.neuron.ops import Experts


def describe(programs: Sequence[Program]) -> list[dict[str, object]]:
    """Returns the contents of each core of a replica, as /v1/placement reports them.

    `layers` are the first and the last; heads are the core's own, padding included, those of the layer with
    the most where layers differ; sizes in bytes.
    """
    held = of_each(programs, _held)
    return [_describe_core(program) | sizes for program, sizes in zip(programs, held, strict=True)]


def _experts_of(program: Program) -> dict[str, list[int]]:
    """Returns the first and the last expert, for a core that has some of them."""
    shares = (op.own for op in program.ops if isinstance(op, Experts) and op.own is not None)
    own = next(shares, None)
    return {} if own is None else {"experts": [own.first, own.first + own.size - 1]}


def _describe_core(program: Program) -> dict[str, object]:
    return {
        "core": program.core,
        "stage": program.stage,
        "rank": program.rank,
        **_experts_of(program),
        "layers": [program.layers.start, program.layers.stop - 1],
        "heads": max((layout.heads for layout in program.head_layouts), default=0),
        "kv_heads": max((layout.kv_heads for layout in program.head_layouts), default=0),
    }


def _held(program: Program) -> dict[str, object]:
    """Returns the bytes that a core holds, by the keys of /v1/placement."""
    return {
        "weight_bytes": weight_bytes_by_format(program),
        "kv_bytes_per_token": kv_bytes_per_token(program),
        **({"state_bytes_per_sequence": kept} if (kept := state_bytes(program)) else {}),
    }
