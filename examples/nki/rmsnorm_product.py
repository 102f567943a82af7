"""RMSNorm and a product, fused, in five steps from naive to fast.

x: [rows, width]; gain: [1, width]; weight: [width, columns]; the result is [rows, columns].
docs/nki.md tells the story of the steps.
"""

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np

TILE = 128
"""Rows of a tile, and the most of the contracted axis that a product takes."""
BANK = 512
"""fp32 values in a bank of PSUM, the most columns of a product."""
EPS = 1e-6


@nki.jit
def rmsnorm_product_1(x, gain, weight):
    """Two kernels in a row, written as numpy: the normalised rows go to HBM and come back for every tile."""
    (rows, width), columns = x.shape, weight.shape[1]
    y = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    normed = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.hbm)
    for m in nl.affine_range(rows // TILE):
        at = slice(m * TILE, (m + 1) * TILE)
        tile = nl.load(x[at, 0:width])
        mean = nl.sum(nl.square(tile), axis=1, keepdims=True) / width
        factors = nl.broadcast_to(nl.load(gain), shape=(TILE, width))
        nl.store(normed[at, 0:width], value=tile * nl.rsqrt(mean + EPS) * factors)
    for m in nl.affine_range(rows // TILE):
        for n in nl.affine_range(columns // TILE):
            total = nl.zeros((nl.par_dim(TILE), TILE), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(width // TILE):
                inner = slice(k * TILE, (k + 1) * TILE)
                tile = nl.load(normed[m * TILE : (m + 1) * TILE, inner])
                total += nl.matmul(tile, nl.load(weight[inner, n * TILE : (n + 1) * TILE]))
            out = nl.copy(total, dtype=x.dtype)
            nl.store(y[m * TILE : (m + 1) * TILE, n * TILE : (n + 1) * TILE], value=out)
    return y


@nki.jit
def rmsnorm_product_2(x, gain, weight):
    """Fused: the normalised rows stay in SBUF, and each tile of them is transposed once."""
    return fused(x, gain, weight, nl.float32)


@nki.jit
def rmsnorm_product_3(x, gain, weight):
    """bf16 for TensorE, which takes a quarter of the time; sums stay fp32."""
    return fused(x, gain, weight, nl.bfloat16)


def fused(x, gain, weight, dtype):
    """Returns the result with operands of TensorE in `dtype`, a tile of columns at a time."""
    (rows, width), columns = x.shape, weight.shape[1]
    y = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    factors = nl.broadcast_to(nl.load(gain), shape=(TILE, width))
    for m in nl.affine_range(rows // TILE):
        turned = transposed(normalised(x[m * TILE : (m + 1) * TILE, 0:width], factors, dtype), dtype)
        for n in nl.affine_range(columns // TILE):
            cols = slice(n * TILE, (n + 1) * TILE)
            total = nl.zeros((nl.par_dim(TILE), TILE), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(width // TILE):
                part = nl.load(weight[k * TILE : (k + 1) * TILE, cols], dtype=dtype)
                total += nisa.nc_matmul(turned[:, k, :], part)
            nl.store(y[m * TILE : (m + 1) * TILE, cols], value=nl.copy(total, dtype=x.dtype))
    return y


def normalised(x, factors, dtype):
    """Returns rows of HBM, normalised and times the gain."""
    tile = nl.load(x)
    mean = nl.sum(nl.square(tile), axis=1, keepdims=True) / tile.shape[1]
    return nl.multiply(tile * nl.rsqrt(mean + EPS), factors, dtype=dtype)


def transposed(tile, dtype):
    """Returns [rows, width] as [width of a tile, tiles, rows]: what is contracted lies on the partitions."""
    rows, width = tile.shape
    turned = nl.ndarray((nl.par_dim(TILE), width // TILE, rows), dtype=dtype, buffer=nl.sbuf)
    for k in nl.affine_range(width // TILE):
        turned[:, k, :] = nl.copy(nisa.nc_transpose(tile[:, k * TILE : (k + 1) * TILE]), dtype=dtype)
    return turned


@nki.jit
def rmsnorm_product_4(x, gain, weight):
    """Weights are loaded once and stay; a product fills a bank of PSUM; stores are whole rows."""
    (rows, width), columns = x.shape, weight.shape[1]
    piece = min(BANK, columns)
    y = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    factors = nl.broadcast_to(nl.load(gain), shape=(TILE, width))
    kept = nl.ndarray((nl.par_dim(TILE), width // TILE, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    for k in nl.affine_range(width // TILE):
        kept[:, k, :] = nl.load(weight[k * TILE : (k + 1) * TILE, 0:columns], dtype=nl.bfloat16)
    for m in nl.affine_range(rows // TILE):
        at = slice(m * TILE, (m + 1) * TILE)
        turned = transposed(normalised(x[at, 0:width], factors, nl.bfloat16), nl.bfloat16)
        out = nl.ndarray((nl.par_dim(TILE), columns), dtype=x.dtype, buffer=nl.sbuf)
        for n in nl.affine_range(columns // piece):
            part = slice(n * piece, (n + 1) * piece)
            total = nl.zeros((nl.par_dim(TILE), piece), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(width // TILE):
                total += nisa.nc_matmul(turned[:, k, :], kept[:, k, part])
            out[:, part] = nl.copy(total, dtype=x.dtype)
        nl.store(y[at, 0:columns], value=out)
    return y


@nki.jit
def rmsnorm_product_5(x, gain, weight):
    """The gain moves into the weights and each row's factor behind the product, so that VectorE passes over
    no row, and ScalarE squares and sums them in one pass."""
    (rows, width), columns = x.shape, weight.shape[1]
    y = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    kept, piece = scaled(weight, gain), min(BANK, columns)
    for m in nl.affine_range(rows // TILE):
        at = slice(m * TILE, (m + 1) * TILE)
        tile = nl.load(x[at, 0:width], dtype=nl.bfloat16)
        turned = transposed(tile, nl.bfloat16)
        total = nl.ndarray((nl.par_dim(TILE), 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(op=nl.square, data=tile, reduce_op=np.add, reduce_res=total)
        factor = nl.rsqrt(nisa.tensor_scalar(total, np.multiply, 1 / width, op1=np.add, operand1=EPS))
        out = nl.ndarray((nl.par_dim(TILE), columns), dtype=x.dtype, buffer=nl.sbuf)
        for n in nl.affine_range(columns // piece):
            part = slice(n * piece, (n + 1) * piece)
            bank = nl.zeros((nl.par_dim(TILE), piece), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(width // TILE):
                bank += nisa.nc_matmul(turned[:, k, :], kept[:, k, part])
            out[:, part] = nisa.tensor_scalar(bank, op0=np.multiply, operand0=factor, dtype=x.dtype)
        nl.store(y[at, 0:columns], value=out)
    return y


def scaled(weight, gain):
    """Returns the weight times the gain of each row in SBUF, in bf16."""
    width, columns = weight.shape
    kept = nl.ndarray((nl.par_dim(TILE), width // TILE, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
    for k in nl.affine_range(width // TILE):
        factor = nl.load(gain[0, k * TILE + nl.arange(TILE)[:, None]])
        rows = nl.load(weight[k * TILE : (k + 1) * TILE, 0:columns])
        kept[:, k, :] = nisa.tensor_scalar(rows, op0=np.multiply, operand0=factor, dtype=nl.bfloat16)
    return kept


def get_inputs(rows=1024, width=1024, columns=1024):
    """Returns x, gain and weight."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width))
    gain, weight = rng.uniform(0.5, 1.5, (1, width)), rng.standard_normal((width, columns)) / width**0.5
    return [v.astype(np.float32) for v in (x, gain, weight)]


def reference(x, gain, weight):
    """Returns the result in fp64."""
    x = x.astype(np.float64)
    normed = x / np.sqrt((x * x).mean(1, keepdims=True) + EPS) * gain
    return normed @ weight.astype(np.float64)
