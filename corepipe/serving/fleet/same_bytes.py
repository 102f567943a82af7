"""Whether two hosts give the same bytes: an answer begun on one goes on on the other."""

from __future__ import annotations

from typing import Any

from corepipe.engine.messages import Ready

OWN = frozenset({"host_limits", "kv_blocks_per_replica"})
"""What of a placement may differ from machine to machine: what memory allows."""


def difference(one: Ready, other: Ready) -> str | None:
    """Why the engine of `other` must not go on with what that of `one` began; None: it may."""
    if one.isa != other.isa and one.placement.get("bits") != "same":
        return (
            f"its kernels are those for {other.isa}, others' are for {one.isa}: --bits same makes them agree"
        )
    if one.weights != other.weights:
        return f"its weights are others ({other.weights}, not {one.weights})"
    for name in ("block_size", "max_model_len", "task"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            return f"its {name} is {theirs}, others' is {ours}"
    if _shared(one.placement) != _shared(other.placement):
        return "it places the model otherwise"
    return None


def _shared(placement: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in placement.items() if name not in OWN}
