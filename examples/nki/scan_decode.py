"""Mamba-2's recurrence for one row of each sequence, as answers need it.  In the current dialect.

x: [sequences, heads * channels]; dt: [sequences, heads], step sizes; a: [1, heads], below 0; b and c:
[sequences, states], shared by the heads; skip: [1, heads]; state: [sequences, heads, states, channels].
For each sequence and head: state = exp(dt a) state + outer(b, dt x), and out = c state + skip x.  Returns out
like x, and the new state.  dt, a, skip and state are in fp32.
"""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

BANK = nl.tile_size.gemm_moving_fmax


@nki.jit
def scan_decode(x, dt, a, b, c, skip, state):
    """TensorE makes outer products and reads states, VectorE decays them, one sequence after another.

    Products choose a sequence by its row: b, c and skip x are 0 in the rows of all others.
    """
    (sequences, width), (_, heads, states, channels) = x.shape, state.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    after = nl.ndarray(state.shape, dtype=state.dtype, buffer=nl.shared_hbm)
    values, steps, keys, queries = (loaded(part) for part in (x, dt, b, c))
    identity = diagonal(sequences)
    entering = per_head(values, steps)
    skipped = per_head(values, repeated(loaded(skip), sequences))
    decays = product_of(steps, repeated(loaded(a), sequences))
    nisa.activation(dst=decays, op=nl.exp, data=decays)
    for s in range(sequences):
        one = identity[0:sequences, s : s + 1]
        own = chosen(keys, one)
        column = in_sbuf(summed(queries, one))
        decay = in_sbuf(summed(chosen(ones(sequences, states), one), decays))
        kept = nl.ndarray((states, heads, channels), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=kept, src=state[s].permute((1, 0, 2)))
        nisa.tensor_tensor(dst=kept, data1=kept, data2=spread(decay, channels), op=nl.multiply)
        flat, row = kept.reshape((states, width)), nl.ndarray((1, width), dtype=x.dtype, buffer=nl.sbuf)
        for left in range(0, width, BANK):
            part = slice(left, min(width, left + BANK))
            nisa.tensor_tensor(
                dst=flat[0:states, part],
                data1=flat[0:states, part],
                data2=summed(own, entering[0:sequences, part]),
                op=nl.add,
            )
            read = nl.ndarray((1, part.stop - left), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=read, stationary=column, moving=flat[0:states, part])
            nisa.nc_matmul(dst=read, stationary=one, moving=skipped[0:sequences, part])
            nisa.tensor_copy(dst=row[0:1, part], src=read)
        nisa.dma_copy(dst=out[s : s + 1, 0:width], src=row)
        nisa.dma_copy(dst=after[s].permute((1, 0, 2)), src=kept)
    return out, after


def loaded(tensor):
    """Returns a matrix of HBM in SBUF, in fp32."""
    stored = nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=stored, src=tensor)
    if tensor.dtype == nl.float32:
        return stored
    return in_sbuf(stored)


def in_sbuf(tile):
    """Returns a copy in SBUF, in fp32."""
    copied = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copied, src=tile)
    return copied


def ones(rows, columns):
    """Returns a tile of ones."""
    tile = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=1.0)
    return tile


def diagonal(size):
    """Returns an identity matrix."""
    tile = ones(size, size)
    nisa.affine_select(
        dst=tile,
        pattern=[[-1, size]],
        channel_multiplier=1,
        on_true_tile=tile,
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    return tile


def summed(stationary, moving):
    """Returns the product over partitions, in PSUM: stationary [k, m], transposed, times moving [k, n]."""
    product = nl.ndarray((stationary.shape[1], moving.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=stationary, moving=moving)
    return product


def repeated(row, partitions):
    """Returns a row in so many partitions."""
    return in_sbuf(summed(ones(1, partitions), row))


def chosen(tile, one):
    """Returns the rows of a tile times a number each."""
    result = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=tile, op0=nl.multiply, operand0=one)
    return result


def product_of(tile, other):
    """Returns the product, element by element."""
    result = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=tile, data2=other, op=nl.multiply)
    return result


def per_head(tile, factors):
    """Returns [rows, heads * channels] times a factor for each row and head."""
    (rows, width), heads = tile.shape, factors.shape[1]
    result = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    shape = (rows, heads, width // heads)
    nisa.tensor_tensor(
        dst=result.reshape(shape),
        data1=tile.reshape(shape),
        data2=spread(factors, width // heads),
        op=nl.multiply,
    )
    return result


def spread(tile, channels):
    """Returns [rows, heads] as [rows, heads, channels]: a view with steps of 0."""
    rows, heads = tile.shape
    return tile.ap(pattern=[[heads, rows], [1, heads], [0, channels]])


def get_inputs(sequences=4, heads=8, channels=64, states=128):
    """Returns x, dt, a, b, c, skip and state."""
    rng = np.random.default_rng(0)
    shapes = (sequences, heads * channels), (sequences, states), (sequences, states)
    x, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    dt = rng.uniform(0.001, 0.1, (sequences, heads)).astype(np.float32)
    a = -rng.uniform(1, 16, (1, heads)).astype(np.float32)
    skip = rng.standard_normal((1, heads)).astype(np.float32)
    state = rng.standard_normal((sequences, heads, states, channels)).astype(np.float32)
    return [x, dt, a, b, c, skip, state]


def reference(x, dt, a, b, c, skip, state):
    """Returns the result and the new state in fp64."""
    x, dt, a, b, c, skip, state = (array.astype(np.float64) for array in (x, dt, a, b, c, skip, state))
    by_head = x.reshape(*dt.shape, -1)
    entering = b[:, None, :, None] * (dt[..., None] * by_head)[:, :, None, :]
    state = np.exp(dt * a)[..., None, None] * state + entering
    out = np.einsum("sn,shnc->shc", c, state) + skip[0][:, None] * by_head
    return out.reshape(x.shape), state
