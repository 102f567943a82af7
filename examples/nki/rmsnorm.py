"""RMSNorm.  In the current dialect: destinations first.

x: [rows, width]; gain: [width] or [1, width]; the result is [rows, width].
"""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np


@nki.jit
def rmsnorm(x, gain, eps=1e-6):
    """ScalarE squares and sums each row in one pass; VectorE multiplies by its factor and by the gain."""
    rows, width = x.shape
    out = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.shared_hbm)
    gains = in_all_partitions(gain.reshape((1, width)))
    for start in range(0, rows, nl.tile_size.pmax):
        stop = min(rows, start + nl.tile_size.pmax)
        n = stop - start
        tile, y = (nl.ndarray((n, width), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
        squares = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
        factor = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start:stop, 0:width])
        nisa.activation_reduce(dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=factor)
        nisa.tensor_scalar(
            dst=factor, data=factor, op0=nl.multiply, operand0=1 / width, op1=nl.add, operand1=eps
        )
        nisa.activation(dst=factor, op=nl.rsqrt, data=factor)
        nisa.scalar_tensor_tensor(
            dst=y, data=tile, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=gains[0:n, 0:width]
        )
        nisa.dma_copy(dst=out[start:stop, 0:width], src=y)
    return out


def in_all_partitions(row):
    """Returns a row of HBM in every partition of SBUF: a product with ones, a bank of PSUM at a time."""
    width, bank = row.shape[1], nl.tile_size.gemm_moving_fmax
    ones = nl.ndarray((1, nl.tile_size.pmax), dtype=nl.float32, buffer=nl.sbuf)
    loaded = nl.ndarray((1, width), dtype=row.dtype, buffer=nl.sbuf)
    everywhere = nl.ndarray((nl.tile_size.pmax, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    nisa.dma_copy(dst=loaded, src=row)
    exact = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=exact, src=loaded)
    for left in range(0, width, bank):
        right = min(width, left + bank)
        product = nl.ndarray((nl.tile_size.pmax, right - left), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=ones, moving=exact[0:1, left:right])
        nisa.tensor_copy(dst=everywhere[0 : nl.tile_size.pmax, left:right], src=product)
    return everywhere


def get_inputs(rows=128, width=1024):
    """Returns x and gain."""
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal((rows, width)).astype(np.float32),
        rng.uniform(0.5, 1.5, width).astype(np.float32),
    ]


def reference(x, gain, eps=1e-6):
    """Returns the result in fp64."""
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + eps) * gain.reshape(1, -1)
