"""Attention over a cache equals numpy, and a row's bits depend on its sequence alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import numpy as np
import pytest

from corepipe.kernels import _native
from tests.kernels.harness import AttentionRig, bf16, crossed, elsewhere, i32, in_turn, one_step, value
from tests.reference.attention import HeadVectors

SHAPES = [  # heads, kv_heads, head_dim
    (6, 2, 64),
    (1, 1, 64),
    (8, 1, 128),
    (9, 3, 40),
    (4, 4, 33),
    (14, 2, 80),
    (2, 1, 256),
    (3, 1, 1),
]

ROUNDING = {"bf16": 2.0**-8 + 2e-5, "fp32": 2e-5, "int8": 2.0**-8 + 2e-5, "int8-fp32": 2e-5}
"""bf16: each probability is off by 2^-8 at most, relatively; fp32: by the score's rounding.  The loss of int8
happens before."""
DTYPES = tuple(ROUNDING)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_equals_numpy(heads: int, kv_heads: int, head_dim: int, dtype: str, rng: np.random.Generator) -> None:
    rig = AttentionRig(heads, kv_heads, head_dim, dtype)
    seq = rig.sequence(rng, 150, rng.permutation(80)[:10])
    expected, magnitude = rig.expected(seq)
    error = np.abs(rig.run(seq, 150) - expected)
    assert np.all(error <= magnitude * ROUNDING[dtype])


def test_results_are_rounded(rng: np.random.Generator) -> None:
    plain, rounded = AttentionRig(), AttentionRig(round_bf16=True)
    seq = plain.sequence(rng, 70, range(5))
    assert np.array_equal(rounded.run(seq, 70), bf16(plain.run(seq, 70)))


NEAR = 2.0**-8 + 2e-5
CUTS = ([512], [64], [1, 1, 7, 33, 2, 63], [5, 130, 1, 1, 1])
OTHERS = ((1, 16), (3, 48))
"""Threads, and positions of a block."""


def check(
    make: Callable[..., AttentionRig],
    lengths: Sequence[int],
    cuts: Sequence[Sequence[int]] = CUTS,
    near: float = NEAR,
    others: Sequence[tuple[int, int]] = OTHERS,
) -> list[np.ndarray]:
    """Checks sequences of these lengths against numpy, and that a row has the same bits in any chunks, in any
    company and place, with any number of threads, and as the only row of a step; returns the results."""
    rng, blocks = np.random.default_rng(7), sum(-(-n // 16) for n in lengths)
    rig = make(blocks=blocks, max_rows=sum(lengths))
    order = iter(rng.permutation(blocks).tolist())
    seqs = [rig.sequence(rng, n, list(islice(order, -(-n // 16)))) for n in lengths]
    alone = [rig.run(seq, len(seq.q)) for seq in seqs]
    for seq, whole in zip(seqs, alone, strict=True):
        expected, magnitude = rig.expected(seq)
        assert np.all(np.abs(whole - expected) <= magnitude * near)
        for chunks in cuts:
            assert np.array_equal(rig.run(seq, *chunks), whole), chunks
    for threads, block_size in others:
        other = make(blocks=blocks, max_rows=sum(lengths), threads=threads, block_size=block_size)
        together = other.step(*[(seq, 0, len(seq.q)) for seq in seqs])
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
        decoded = other.step(*[(seq, len(seq.q) - 1, len(seq.q)) for seq in seqs])
        assert all(np.array_equal(a[-1:], b) for a, b in zip(alone, decoded, strict=True))
    return alone


@pytest.mark.parametrize(
    ("dtype", "window"), crossed(DTYPES, elsewhere([None, 1, 33, 64, 200, 700], [33, 700]))
)
def test_chunking_changes_no_bit(dtype: str, window: int | None) -> None:
    check(partial(AttentionRig, 3, 1, dtype=dtype, window=window), [540])


@pytest.mark.parametrize(
    ("dtype", "size"), crossed(DTYPES, elsewhere([1, 33, 64, 96, 130, 512, 700], [33, 512]))
)
def test_chunks_of_positions_equal_numpy_in_any_cut(dtype: str, size: int) -> None:
    """The chunks end within a block of keys and at its end, within a segment, after it and at its end."""
    make = partial(AttentionRig, 3, 1, dtype=dtype)
    (whole,) = check(partial(make, window=size, chunked=True), [540])
    (plain,) = check(make, [540], [])
    assert np.array_equal(plain[:size], whole[:size])


@pytest.mark.parametrize(
    ("dtype", "shape"),
    crossed(
        DTYPES,
        elsewhere(
            [(7, 1, 33), (14, 2, 80), (7, 1, 96), (14, 2, 112), (7, 1, 256)], [(7, 1, 33), (14, 2, 112)]
        ),
    ),
)
def test_other_head_sizes_in_groups_of_seven(dtype: str, shape: tuple[int, int, int]) -> None:
    """A group of seven fills no tile."""
    check(partial(AttentionRig, *shape, dtype), [131, 70], [[64], [1, 7, 33, 2, 63]], ROUNDING[dtype])


@pytest.mark.parametrize(("dtype", "window"), in_turn(DTYPES, elsewhere([1025, 1100, 1537], [1100])))
def test_windows_over_three_segments(dtype: str, window: int) -> None:
    """Sums of 512 keys are computed apart; a window may begin and end anywhere in the first and the last."""
    length = elsewhere([1700, 1300], [1300])[0]
    make = partial(AttentionRig, 2, 1, 16, dtype, window=window)
    others = [(1, 16), (5, 16), *OTHERS]
    for size in (length, 1200, 1025):
        check(make, [size], [[512], [700, 1, 63, 300]] if size == length else [], others=others)


SLOPES = np.float32([1, 0.25, 2.0**-8, 0.3, 0.01, 0, 2.0**-3])
SINKS = np.float32([3, -2, 0.5, 40, -200, 1, 0])
"""Scores without a key that count for more than all keys, for less than any, and between."""
BENDS = {
    "capped": {"softcap": 3.0},
    "falling": {"slopes": SLOPES},
    "both": {"softcap": 2.0, "slopes": SLOPES},
    "sinks": {"sinks": SINKS},
    "all": {"softcap": 2.0, "slopes": SLOPES, "sinks": SINKS},
}


@pytest.mark.parametrize(
    ("bend", "dtype", "shape"),
    in_turn(
        elsewhere(list(BENDS), ["all"]),
        DTYPES,
        [(7, 1, 24, None), (7, 7, 80, 33), (7, 1, 256, 200), (7, 7, 32, 64)],
    ),
)
def test_caps_slopes_and_sinks_equal_numpy_in_any_chunks(
    bend: str, dtype: str, shape: tuple[int, int, int, int | None]
) -> None:
    """A prompt of 220 tokens and one of two segments; positions are the sequence's, whatever the chunk."""
    *sizes, window = shape
    make = partial(AttentionRig, *sizes, dtype, window=window, **BENDS[bend])
    check(make, [220, 540], [[64], [1, 7, 133, 2, 63]], 2 * ROUNDING[dtype])


def test_batch_threads_and_blocks_change_no_bit() -> None:
    check(AttentionRig, [1, 15, 64, 65, 300, 620], [], others=[(1, 16), (2, 16), (2, 48), (3, 64)])


def test_single_rows_and_keys_split_over_threads_change_no_bit() -> None:
    check(AttentionRig, [580], [[490, *[1] * 90]])
    check(partial(AttentionRig, 3, 1), [1600], [], others=[(1, 16), (2, 16)])


@pytest.mark.parametrize("head_dim", elsewhere([64, 256], [64]))
def test_chunks_of_one_row_equal_many_at_any_magnitude(head_dim: int, rng: np.random.Generator) -> None:
    """An ISA may multiply one row and many by other instructions, also where sums become subnormal."""
    rig = AttentionRig(2, 2, head_dim)
    for q, k, v in [(0, 0, 0), (4, 0, 0), (-64, -62, 0), (0, 0, -120), (4, 0, -110), (3, 0, -126)]:
        seq = rig.sequence(rng, 70, range(5))
        for array, exponent in ((seq.q, q), (seq.k, k), (seq.v, v)):
            np.ldexp(array, exponent + rng.integers(-6, 7, array.shape), out=array)
        assert np.array_equal(rig.run(seq, 1), rig.run(seq, 70)), (q, k, v)


def test_prefix_computed_in_the_same_batch(rng: np.random.Generator) -> None:
    rig = AttentionRig()
    first = rig.sequence(rng, 64, [3, 9, 1, 7])
    second = rig.sequence(rng, 80, [3, 9, 1, 7, 20])
    second.k[:64], second.v[:64] = first.k, first.v
    _, suffix = rig.step((first, 0, 64), (second, 64, 80))
    rig.step((second, 0, 80))
    assert np.array_equal(rig.step((second, 64, 80))[0], suffix)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", elsewhere([None, 21], [21]))
def test_nan_of_others_stays_out(dtype: str, window: int | None, rng: np.random.Generator) -> None:
    clean = AttentionRig(dtype=dtype, window=window)
    seq = clean.sequence(rng, 60, range(4))
    expected = clean.run(seq, 60)
    dirty = AttentionRig(dtype=dtype, window=window)
    dirty.cache.memory()[:] = 0xFF  # NaN in both formats, as earlier owners of the memory may leave
    for chunk in (1, 3, 60):
        assert np.array_equal(dirty.run(seq, chunk), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_of_later_tokens_stays_out(dtype: str, rng: np.random.Generator) -> None:
    rig = AttentionRig(dtype=dtype)
    seq = rig.sequence(rng, 90, range(6))
    expected = rig.run(seq, 90)
    seq.k[71:], seq.v[71:] = np.nan, np.inf
    assert np.array_equal(rig.run(seq, 90)[:71], expected[:71])


def test_nan_that_left_the_window_stays_out(rng: np.random.Generator) -> None:
    rig = AttentionRig(window=30)
    seq = rig.sequence(rng, 90, range(6))
    expected = rig.run(seq, 90)
    seq.k[40], seq.v[40] = np.nan, np.nan
    got = rig.run(seq, 90)
    assert np.isnan(got[40:70]).all()
    assert np.array_equal(got[70:], expected[70:])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_nan_of_earlier_chunks_stays_out(dtype: str, rng: np.random.Generator) -> None:
    """Also a NaN in the block of keys in which a chunk begins."""
    rig = AttentionRig(dtype=dtype, window=40, chunked=True)
    seq = rig.sequence(rng, 130, range(9))
    expected = rig.run(seq, 130)
    seq.k[70], seq.v[70] = np.nan, np.nan
    for chunk in (1, 130):
        got = rig.run(seq, chunk)
        assert np.isnan(got[70:80]).all()
        assert np.array_equal(np.delete(got, range(70, 80), 0), np.delete(expected, range(70, 80), 0))


@pytest.mark.parametrize("arguments", [{"window": None}, {"window": 40, "causal": False}])
def test_chunks_that_do_not_fit_are_refused(arguments: dict[str, object]) -> None:
    cache = _native.KVCache(1, 5, 16, 1, 16, "fp32") if "causal" not in arguments else None
    program = _native.Program([16] * 4, 8, round_bf16=False)
    with pytest.raises(ValueError, match="chunks are of what is causal, as long as a window"):
        program.attention(0, 1, 2, 3, cache, 0, 1, 0.25, chunked=True, **arguments)


@pytest.mark.parametrize("round_bf16", [True, False])
def test_norms_after_rotation_and_tempers_equal_separate_ops(
    round_bf16: bool, rng: np.random.Generator
) -> None:
    """In prompts and in answers; a norm after the rotation equals one before it, except for rounding."""
    heads, kv_heads, d, rows = 4, 2, 40, 70
    angles = np.outer(np.arange(rows), 0.7 ** np.arange(20)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    norm, tempers = (np.ones(d, np.float32), 1e-5), (1 + rng.random(rows)).astype(np.float32)
    fused = AttentionRig(
        heads, kv_heads, d, round_bf16=round_bf16, rope=(cos, sin), head_norm=norm, tempers=tempers
    )
    seq = fused.sequence(rng, rows, range(5))

    cache = _native.KVCache(1, 5, 16, kv_heads, d, "bf16")
    widths = [heads * d, kv_heads * d, kv_heads * d, heads * d, 1]
    program = _native.Program(widths, rows, round_bf16)
    for x in (0, 1):
        program.rope(x, x, d, cos, sin)
        program.rms_norm(x, x, *norm)
    program.scale(0, 1.0, 0, 4)
    program.attention(0, 1, 2, 3, cache, 0, heads, d**-0.5)
    for i, x in {0: seq.q, 1: seq.k, 2: seq.v, 4: tempers[:, None]}.items():
        value(program, i)[:, : widths[i]] = x
    one_step([program], rows, 3)
    whole = fused.run(seq, rows)
    assert np.array_equal(whole, value(program, 3)[:, : heads * d])
    assert np.array_equal(fused.run(seq, 1), whole)
    long = i32(rows)
    with pytest.raises(ValueError, match="position"):
        fused.executor.submit(0 * long, long, i32(0, 1), i32(*range(5))[None], long[:0], None)


@pytest.mark.parametrize("round_bf16", [True, False])
def test_fused_front_equals_separate_ops(round_bf16: bool, rng: np.random.Generator) -> None:
    heads, kv_heads, d, rows = 4, 2, 40, 70
    angles = np.outer(np.arange(rows), 0.7 ** np.arange(15)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    q_gain, k_gain = rng.standard_normal((2, d)).astype(np.float32)
    norms = {"q_norm": (q_gain, 1e-6), "k_norm": (k_gain, 1e-5)}
    fused = AttentionRig(heads, kv_heads, d, round_bf16=round_bf16, rope=(cos, sin), **norms)
    seq = fused.sequence(rng, rows, range(5))

    cache = _native.KVCache(1, 5, 16, kv_heads, d, "bf16")
    program = _native.Program([heads * d, kv_heads * d, kv_heads * d, heads * d], rows, round_bf16)
    program.rms_norm(0, 0, *norms["q_norm"])
    program.rms_norm(1, 1, *norms["k_norm"])
    program.rope(0, 0, d, cos, sin)
    program.rope(1, 1, d, cos, sin)
    program.attention(0, 1, 2, 3, cache, 0, heads, d**-0.5)
    for i, x in enumerate((seq.q, seq.k, seq.v)):
        value(program, i)[:] = x
    one_step([program], rows, 3)
    assert np.array_equal(fused.run(seq, rows), value(program, 3))

    x = seq.q.reshape(rows, heads, d)
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * q_gain
    normed = bf16(normed.astype(np.float32)) if round_bf16 else normed
    a, b = normed[..., :15], normed[..., 15:30]
    c, s = cos[:, None], sin[:, None]
    rotated = np.concatenate([a * c - b * s, b * c + a * s, normed[..., 30:]], -1)
    tolerance = 2.0**-7 if round_bf16 else 1e-5
    assert np.allclose(value(program, 0).reshape(rotated.shape), rotated, rtol=tolerance, atol=tolerance)


def test_cache_refuses_what_it_cannot_hold() -> None:
    for arguments in [(1, 4, 24, 1, 64, "bf16"), (1, 0, 16, 1, 64, "bf16"), (1, 4, 16, 1, 64, "fp16")]:
        with pytest.raises(ValueError, match=r"block_size|blocks|bf16"):
            _native.KVCache(*arguments)
    cache = _native.KVCache(3, 4, 16, 2, 64, "bf16")
    assert cache.nbytes == 3 * 4 * 16 * 2 * 64 * 2 * 2
    assert not cache.memory().any()


@pytest.mark.parametrize("head_dim", [33, 64, 80])
def test_what_a_cache_of_int8_holds_equals_the_twins(head_dim: int, rng: np.random.Generator) -> None:
    """Integers and scales are equal to the last bit, on every table."""
    length, heads = 70, 3
    rig = AttentionRig(heads, heads, head_dim, "int8-fp32", blocks=5)
    seq = rig.sequence(rng, length, range(5))
    rig.run(seq, 9)
    width = -(-head_dim // 16) * 16
    groups = rig.cache.memory().reshape(2, heads, 5, 2, 16 * (4 + width))[1]
    scales = np.ascontiguousarray(groups[..., :64]).view(np.float32)
    keys = groups[:, :, 0, 64:].view(np.int8).reshape(heads, 5, width, 16).swapaxes(2, 3)
    values = groups[:, :, 1, 64:].view(np.int8).reshape(heads, 5, 16, width)
    for number, (integers, vectors) in enumerate(((keys, seq.k), (values, seq.v))):
        reference = HeadVectors.zeros(length, heads, head_dim, int8=True)
        put = reference.put if number else reference.put_keys
        put(np.arange(length), vectors.reshape(length, heads, head_dim))
        own = integers.reshape(heads, 80, width)[:, :length].swapaxes(0, 1)
        assert np.array_equal(own[..., :head_dim], reference.elements)
        assert not own[..., head_dim:].any()
        assert np.array_equal(scales[:, :, number].reshape(heads, 80)[:, :length].T, reference.scale)
