"""Conversion of four-bit weights to the panels of the kernels, and back."""

from __future__ import annotations

from corepipe.kernels import packing
from corepipe.kernels.packing import Int4Kind
from corepipe.neuron.numerics.int4 import U8, Int4


def kind_of(weight: Int4) -> Int4Kind:
    """Returns the kind of panels in which kernels keep a weight."""
    return packing.int4_kind(weight.group, weight.offsets)


def pack(weight: Int4) -> U8:
    """Returns a weight as panels of its kind."""
    return packing.pack_int4(kind_of(weight), packing.Int4Arrays(weight.values, weight.scale, weight.offset))


def unpack(kind: Int4Kind, data: U8, n: int, k: int) -> Int4:
    """Returns the weight of packed panels; raises ValueError for data of another size."""
    arrays = packing.unpack_int4(kind, data, n, k)
    return Int4(arrays.values, arrays.scale, *packing.int4_form(kind), arrays.offset)
