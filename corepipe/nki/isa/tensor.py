"""Instructions of TensorE: products and transposes."""

from __future__ import annotations

import numpy as np

from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.operations import stored


def nc_matmul(
    dst: View,
    stationary: View,
    moving: View,
    *,
    accumulate: bool = False,
    is_transpose: bool = False,
    onezero: bool = False,
) -> Instruction:
    """Multiplies stationary [K, M], transposed, by moving [K, N] into dst [M, N] in PSUM.

    accumulate: adds to what dst holds.  is_transpose: moving is an identity matrix, and the result keeps the
    stationary's values exactly.  onezero: one operand holds ones and zeros alone, which saves a pass in fp32.
    """
    recorder = current()
    if recorder.values:
        product = stationary.array().astype(np.float32).T @ moving.array().astype(np.float32)
        stored(dst.array().astype(np.float32) + product if accumulate else product, dst)
    k, m, n = stationary.shape[0], stationary.free, moving.free
    return recorder.emit(
        "nc_matmul",
        (Engine.TENSOR,),
        (dst,),
        (stationary, moving),
        accumulates=accumulate,
        size=moving,
        details={
            "k": k,
            "m": m,
            "n": n,
            "is_transpose": is_transpose,
            "onezero": onezero,
            "dtypes": (stationary.dtype.name, moving.dtype.name),
        },
    )
