"""What each core of a replica holds, as /v1/placement reports it."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.neuron.compile.compiler import kv_bytes_per_token, state_bytes, weight_bytes_by_format
from corepipe.neuron.compile.program import Program, of_each
from corepipe.neuron.ops import Experts


def describe(programs: Sequence[Program]) -> list[dict[str, object]]:
    """What each core of a replica holds, as /v1/placement reports it.

    `layers` are the first and the last; heads are the core's own, padding included, where layers differ those
    of the layer that has most; sizes in bytes.
    """
    held = of_each(programs, _held)
    return [_describe_core(program) | sizes for program, sizes in zip(programs, held, strict=True)]


def _experts_of(program: Program) -> dict[str, list[int]]:
    """The first and the last, of a core that has some of them."""
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
    """The bytes that a core holds, by the keys of /v1/placement."""
    return {
        "weight_bytes": weight_bytes_by_format(program),
        "kv_bytes_per_token": kv_bytes_per_token(program),
        **({"state_bytes_per_sequence": kept} if (kept := state_bytes(program)) else {}),
    }
