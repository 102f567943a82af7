"""Attention over a cache, for prompts and for answers.  In the current dialect: destinations first.

Heads are grouped: each head of keys and values serves as many heads of queries as there are more of them.
"""

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np

TILE = 128
"""Rows of a tile: the partitions."""
BANK = 512
"""fp32 values in a bank of PSUM."""
LOWEST = -1e30
"""The score of a key that is masked."""


@nki.jit
def attention_prompt(q, k, v, scale=None):
    """Causal attention of a prompt's last rows.

    q: [rows, heads, width]; k, v: [context, kv_heads, width]; row i sees the keys up to context - rows + i.
    """
    (rows, heads, width), (context, kv_heads) = q.shape, k.shape[:2]
    scale = width**-0.5 if scale is None else scale
    out = nl.ndarray((rows, heads, width), dtype=q.dtype, buffer=nl.shared_hbm)
    for kv_head in range(kv_heads):
        keys = transposed_rows(k[0:context, kv_head, 0:width])
        values = kept_rows(v[0:context, kv_head, 0:width])
        for head in range(kv_head * heads // kv_heads, (kv_head + 1) * heads // kv_heads):
            for start in range(0, rows, TILE):
                stop = min(rows, start + TILE)
                first = context - rows + start
                seen = min(context, first + TILE)
                queries = transposed_rows(q[start:stop, head, 0:width])
                scores = scaled_scores(queries, keys, seen, scale)
                mask_later(scores, first)
                result = weighted(scores, values)
                nisa.dma_copy(dst=out[start:stop, head, 0:width], src=result)
    return out


@nki.jit
def attention_decode(q, k, v, scale=None):
    """Attention of one new row of each sequence, over all of its cache.

    q: [sequences, heads, width]; k, v: [sequences, context, kv_heads, width].
    """
    (sequences, heads, width), (context, kv_heads) = q.shape, k.shape[1:3]
    shared, scale = heads // kv_heads, width**-0.5 if scale is None else scale
    out = nl.ndarray((sequences, heads, width), dtype=q.dtype, buffer=nl.shared_hbm)
    for sequence in range(sequences):
        for kv_head in range(kv_heads):
            own = slice(kv_head * shared, (kv_head + 1) * shared)
            keys = transposed_rows(k[sequence, 0:context, kv_head, 0:width])
            values = kept_rows(v[sequence, 0:context, kv_head, 0:width])
            queries = transposed_rows(q[sequence, own, 0:width])
            scores = scaled_scores(queries, keys, context, scale)
            nisa.dma_copy(dst=out[sequence, own, 0:width], src=weighted(scores, values))
    return out


def kept_rows(tensor):
    """Returns [rows, width] of HBM in SBUF, as a list of tiles."""
    rows, width = tensor.shape
    tiles = []
    for start in range(0, rows, TILE):
        stop = min(rows, start + TILE)
        tile = nl.ndarray((stop - start, width), dtype=tensor.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=tensor[start:stop, 0:width])
        tiles.append(tile)
    return tiles


def transposed_rows(tensor):
    """Returns [rows, width] of HBM as [width, rows] in SBUF; TensorE transposes."""
    rows, width = tensor.shape
    turned = nl.ndarray((width, rows), dtype=tensor.dtype, buffer=nl.sbuf)
    for i, tile in enumerate(kept_rows(tensor)):
        turn(tile, turned[0:width, i * TILE : i * TILE + tile.shape[0]])
    return turned


def turn(tile, target):
    """Writes a tile's transpose to a target in SBUF."""
    product = nl.ndarray(target.shape, dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=product, data=tile)
    nisa.tensor_copy(dst=target, src=product)


def scaled_scores(queries, keys, seen, scale):
    """Returns the scores [rows, seen] of transposed queries and keys in SBUF."""
    width, rows = queries.shape
    scores = nl.ndarray((rows, seen), dtype=nl.float32, buffer=nl.sbuf)
    for left in range(0, seen, BANK):
        right = min(seen, left + BANK)
        product = nl.ndarray((rows, right - left), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=queries, moving=keys[0:width, left:right])
        nisa.tensor_scalar(dst=scores[0:rows, left:right], data=product, op0=nl.multiply, operand0=scale)
    return scores


def mask_later(scores, first):
    """Masks the keys that are later than a row's own, of rows from position `first` on."""
    rows, seen = scores.shape
    diagonal = scores[0:rows, first:seen]
    nisa.affine_select(
        dst=diagonal,
        pattern=[[-1, seen - first]],
        channel_multiplier=1,
        on_true_tile=diagonal,
        on_false_value=LOWEST,
        cmp_op=nl.greater_equal,
    )


def weighted(scores, values):
    """Returns softmax(scores) @ values, in the type of the values.

    ScalarE subtracts the largest score, exponentiates and sums in one pass; the sum divides the result.
    """
    (rows, seen), width = scores.shape, values[0].shape[1]
    lowest, total, share = (nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3))
    weights = nl.ndarray((rows, seen), dtype=values[0].dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=lowest, op=nl.maximum, data=scores, axis=1, negate=True)
    nisa.activation_reduce(
        dst=weights, op=nl.exp, data=scores, bias=lowest, reduce_op=nl.add, reduce_res=total
    )
    nisa.reciprocal(dst=share, data=total)
    bank = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
    for i, tile in enumerate(values[: -(-seen // TILE)]):
        part = slice(i * TILE, min(seen, (i + 1) * TILE))
        keys = part.stop - part.start
        turned = nl.ndarray((keys, rows), dtype=tile.dtype, buffer=nl.sbuf)
        turn(weights[0:rows, part], turned)
        nisa.nc_matmul(dst=bank, stationary=turned, moving=tile[0:keys, 0:width])
    result = nl.ndarray((rows, width), dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=bank, op0=nl.multiply, operand0=share)
    return result


def get_inputs(rows=128, context=256, heads=4, kv_heads=2, width=64):
    """Returns q, k and v of a prompt."""
    rng = np.random.default_rng(0)
    shapes = (rows, heads, width), (context, kv_heads, width), (context, kv_heads, width)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def get_decode_inputs(sequences=2, context=256, heads=4, kv_heads=2, width=64):
    """Returns q, k and v of a step of answers."""
    rng = np.random.default_rng(0)
    cache = (sequences, context, kv_heads, width)
    shapes = (sequences, heads, width), cache, cache
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def reference(q, k, v):
    """Returns the result of `attention_prompt` in fp64."""
    (rows, heads, width), context = q.shape, len(k)
    k, v = (np.repeat(x.astype(np.float64), heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("rhw,chw->hrc", q.astype(np.float64), k) * width**-0.5
    later = np.arange(context)[None, :] > np.arange(context - rows, context)[:, None]
    return np.einsum("hrc,chw->rhw", softmax(np.where(later, -np.inf, scores)), v)


def decode_reference(q, k, v):
    """Returns the result of `attention_decode` in fp64."""
    return np.stack([reference(one[None], *own)[0] for one, *own in zip(q, k, v, strict=True)])


def softmax(scores):
    """Returns the softmax over the last axis."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
