"""The base of Ops between cores, and the cost of exchanges."""

from __future__ import annotations

from corepipe.neuron.chips.engines import OpCost
from corepipe.neuron.chips.rates import CoreRates, Mesh
from corepipe.neuron.formats import Format
from corepipe.neuron.ops.base import Op
from corepipe.neuron.values import Value

MESH_BYTES = 1 << 20
"""Payload from which collectives go around a ring: neuron-runtime/explore/intranode-collective-comm.rst."""


class Transfer(Op):
    """An Op that exchanges its Value with other cores."""

    __slots__ = ()


def exchanges(count: int, out: Value, fmt: Format, rates: CoreRates, mesh: Mesh) -> OpCost:
    """Returns the cost of `count` exchanges; in each, a rank passes on (degree - 1) / degree of the payload.

    Small payloads go to all ranks at once, large ones from neighbour to neighbour; between the two the steps
    are counted in part.
    """
    payload = out.width * fmt.compute.bytes
    moved = payload * (mesh.degree - 1) / mesh.degree
    return OpCost(
        out.rows.number,
        collectives=(
            count * (mesh.link.seconds + rates.exchange),
            count * moved / mesh.link.bytes_per_second,
        ),
        ring=(count * mesh.ring, payload / MESH_BYTES),
    )
