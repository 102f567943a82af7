"""SwiGLU between two products: silu(gate) * up.  In the current dialect: destinations first.

gate, up: [rows, width]; the result is [rows, width].
"""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

PIECE = 2048
"""Elements of a partition that are processed at a time."""


@nki.jit
def swiglu(gate, up):
    """ScalarE computes silu while VectorE multiplies the tile before."""
    rows, width = gate.shape
    out = nl.ndarray((rows, width), dtype=gate.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, nl.tile_size.pmax):
        stop = min(rows, start + nl.tile_size.pmax)
        for left in range(0, width, PIECE):
            right = min(width, left + PIECE)
            shape = (stop - start, right - left)
            g, u, y = (nl.ndarray(shape, dtype=gate.dtype, buffer=nl.sbuf) for _ in range(3))
            silu = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=g, src=gate[start:stop, left:right])
            nisa.dma_copy(dst=u, src=up[start:stop, left:right])
            nisa.activation(dst=silu, op=nl.silu, data=g)
            nisa.tensor_tensor(dst=y, data1=silu, data2=u, op=nl.multiply)
            nisa.dma_copy(dst=out[start:stop, left:right], src=y)
    return out


def get_inputs(rows=128, width=1024):
    """Returns gate and up."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((rows, width)).astype(np.float32) for _ in range(2)]


def reference(gate, up):
    """Returns the result in fp64."""
    gate = gate.astype(np.float64)
    return gate / (1 + np.exp(-gate)) * up
