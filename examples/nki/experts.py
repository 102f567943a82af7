"""A mixture of experts, each a SwiGLU, added up by routing weights.  In the current dialect.

x: [rows, hidden]; weights: [rows, experts], 0 where a row is not routed to an expert; gate and up: [experts,
hidden, ffn]; down: [experts, ffn, hidden].  hidden and ffn are multiples of 128.
"""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

TILE = 128
"""Rows of a tile, and the most of the contracted axis that a product takes."""
BANK = 512
"""fp32 values in a bank of PSUM."""
BLOCK = 4 * BANK
"""Columns of a weight that are loaded at a time: long rows for DMA, and half of PSUM."""


@nki.jit
def experts(x, weights, gate, up, down):
    """Every expert on all rows: its weights are read once, and wait for nothing but the one before."""
    (rows, hidden), (count, _, ffn) = x.shape, gate.shape
    out = nl.ndarray((rows, hidden), dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, TILE):
        stop = min(rows, start + TILE)
        turned = turned_tiles(loaded(x[start:stop, 0:hidden]))
        shares = loaded(weights[start:stop, 0:count])
        total = nl.ndarray((stop - start, hidden), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for e in range(count):
            middle = gated(
                product(turned, gate[e, 0:hidden, 0:ffn]), product(turned, up[e, 0:hidden, 0:ffn]), x.dtype
            )
            result = product(turned_tiles(middle), down[e, 0:ffn, 0:hidden])
            share = shares[0 : stop - start, e : e + 1]
            nisa.scalar_tensor_tensor(
                dst=total, data=result, op0=nl.multiply, operand0=share, op1=nl.add, operand1=total
            )
        rounded = nl.ndarray((stop - start, hidden), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=rounded, src=total)
        nisa.dma_copy(dst=out[start:stop, 0:hidden], src=rounded)
    return out


def loaded(tensor):
    """Returns a part of HBM in SBUF."""
    tile = nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=tensor)
    return tile


def turned_tiles(tile):
    """Returns [rows, width] as tiles [up to 128, rows]: what a product contracts lies on partitions."""
    rows, width = tile.shape
    tiles = []
    for left in range(0, width, TILE):
        right = min(width, left + TILE)
        bank = nl.ndarray((right - left, rows), dtype=tile.dtype, buffer=nl.psum)
        turned = nl.ndarray((right - left, rows), dtype=tile.dtype, buffer=nl.sbuf)
        nisa.nc_transpose(dst=bank, data=tile[0:rows, left:right])
        nisa.tensor_copy(dst=turned, src=bank)
        tiles.append(turned)
    return tiles


def product(turned, weight):
    """Returns the product of turned tiles with a weight of HBM, [rows, columns] in SBUF."""
    (width, columns), rows = weight.shape, turned[0].shape[1]
    result = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    for left in range(0, columns, BLOCK):
        cuts = [(low, min(columns, low + BANK)) for low in range(left, min(columns, left + BLOCK), BANK)]
        banks = [nl.ndarray((rows, high - low), dtype=nl.float32, buffer=nl.psum) for low, high in cuts]
        for i, tile in enumerate(turned):
            inner = slice(i * TILE, min(width, (i + 1) * TILE))
            part = loaded(weight[inner, left : cuts[-1][1]])
            for bank, (low, high) in zip(banks, cuts, strict=True):
                moving = part[0 : tile.shape[0], low - left : high - left]
                nisa.nc_matmul(dst=bank, stationary=tile, moving=moving)
        for bank, (low, high) in zip(banks, cuts, strict=True):
            nisa.tensor_copy(dst=result[0:rows, low:high], src=bank)
    return result


def gated(gates, ups, dtype):
    """Returns silu(gates) * ups."""
    silu = nl.ndarray(gates.shape, dtype=nl.float32, buffer=nl.sbuf)
    middle = nl.ndarray(gates.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.activation(dst=silu, op=nl.silu, data=gates)
    nisa.tensor_tensor(dst=middle, data1=silu, data2=ups, op=nl.multiply)
    return middle


def get_inputs(rows=32, hidden=256, ffn=128, count=4, top_k=2):
    """Returns x, weights, gate, up and down."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, hidden))
    scores = rng.standard_normal((rows, count))
    chosen = scores >= np.sort(scores, axis=1)[:, [-top_k]]
    weights = np.where(chosen, np.exp(scores), 0)
    weights /= weights.sum(1, keepdims=True)
    gate, up = rng.standard_normal((2, count, hidden, ffn)) / hidden**0.5
    down = rng.standard_normal((count, ffn, hidden)) / ffn**0.5
    return [v.astype(np.float32) for v in (x, weights, gate, up, down)]


def reference(x, weights, gate, up, down):
    """Returns the result in fp64."""
    x = x.astype(np.float64)
    total = np.zeros_like(x)
    for e in range(len(gate)):
        g = x @ gate[e]
        total += weights[:, [e]] * ((g / (1 + np.exp(-g)) * (x @ up[e])) @ down[e])
    return total
