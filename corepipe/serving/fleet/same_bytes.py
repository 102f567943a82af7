"""Comparison of hosts: an answer can continue only on a host that would give the same bytes."""

from __future__ import annotations

from typing import Any

from corepipe.engine.messages import Ready

OWN = frozenset({"host_limits", "kv_blocks_per_replica"})
"""The fields of a placement that may differ between machines, since they depend on memory."""


def difference(one: Ready, other: Ready) -> str | None:
    """Returns why the engine of `other` must not continue answers of that of `one`; None: it may."""
    if one.isa != other.isa and one.placement.get("bits") != "same":
        return f"its kernels are for {other.isa}, those of the other hosts are for {one.isa}: use --bits same"
    if one.weights != other.weights:
        return f"its weights differ from those of the other hosts ({other.weights}, not {one.weights})"
    for name in ("block_size", "max_model_len", "task"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            return f"its {name} is {theirs}, that of the other hosts is {ours}"
    if _shared(one.placement) != _shared(other.placement):
        return "its placement of the model differs from that of the other hosts"
    return None


def _shared(placement: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in placement.items() if name not in OWN}
