from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.kernels import _native
from tests.kernels.harness import elsewhere, in_turn, sampling
from tests.kernels.sampling_reference import log_softmax, sample_reference, uniform

VOCAB = 5003


@pytest.fixture
def logits() -> np.ndarray:
    return (np.random.default_rng(3).standard_normal((20, VOCAB)) * 3).astype(np.float32)


def check(logits: np.ndarray, masks: np.ndarray | None = None, **fields: object) -> dict:
    batch = sampling(len(logits), **fields)
    given = () if masks is None else (masks,)
    with np.errstate(invalid="ignore"):
        got, expected = _native.sample(logits, batch, *given), sample_reference(logits, batch, *given)
    for name in ("tokens", "top_ids", "ranks", "overflowed"):
        assert np.array_equal(got[name], getattr(expected, name)), name
    for name in ("logprobs", "top_logprobs"):
        assert np.allclose(got[name], getattr(expected, name), atol=2e-5, equal_nan=True), name
    return got


WAYS = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.05},
    {"temperature": 50.0, "top_p": 0.99},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_k": 3000},
    {"temperature": 1.0, "top_k": VOCAB},
    {"temperature": 1.0, "top_k": 50, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 2.0, "top_k": 100, "top_p": 0.95, "min_p": 0.02},
]


@pytest.mark.parametrize("fields", elsewhere(WAYS, [WAYS[i] for i in (0, 1, 3, 4, 8, 11, 12, 14)]), ids=str)
def test_equals_the_definition(fields: dict, logits: np.ndarray) -> None:
    rows = np.arange(len(logits))
    check(logits, **fields, seed=rows % 5, position=rows * 3, top_logprobs=rows % 7 - 1)


def test_bias_and_penalties(logits: np.ndarray) -> None:
    rng = np.random.default_rng(5)
    rows = len(logits)
    ids = [rng.choice(VOCAB, 200, replace=False) for _ in range(rows)]
    seen = [{int(i): int(n) for i, n in zip(row, rng.integers(0, 4, 200), strict=True)} for row in ids]
    bias = [{int(i): float(rng.choice([-np.inf, 2.5, -7])) for i in row[:50]} for row in ids]
    penalties = {"repetition": 1.3, "presence": 0.4, "frequency": 0.2}
    for temperature in (0.0, 0.8):
        check(
            logits,
            temperature=temperature,
            bias=bias,
            seen=seen,
            top_logprobs=5,
            position=np.arange(rows),
            **penalties,
        )
    check(logits, bias=[{int(np.argmax(x)): -np.inf} for x in logits])


def test_ties_take_the_lowest_id() -> None:
    logits = np.zeros((4, 3001), np.float32)
    logits[1, [77, 2999]] = 1.0
    logits[2, 3000] = np.nan
    logits[3] = -np.inf
    got = check(logits)
    assert got["tokens"].tolist() == [0, 77, 0, 0]
    for fields in ({"top_k": 7}, {"top_p": 0.5}, {"top_k": 2000, "top_p": 0.001}, {}):
        check(logits, temperature=1.0, position=np.arange(4), **fields)


COLD = (1e-45, 1e-42, 5e-39, 1.1754942e-38, 1.1754944e-38, 1.2e-38, 1e-37, 1e-34, 9e-31)
"""Temperatures below every normal fp32 number, around the smallest of them, and up to the greedy limit."""


@pytest.mark.parametrize(
    "around",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.5, "min_p": 0.3}],
    ids=str,
)
def test_tiny_temperatures_take_the_largest(around: dict, logits: np.ndarray) -> None:
    """Logits of every size and sign, which overflow when divided, or vanish; the last rows are ties."""
    logits = np.ascontiguousarray(logits[::2, :811])
    rows = np.arange(len(logits))
    logits[:6] -= 100
    logits[6:10] *= np.float32(1e-30)
    logits[10:14] *= np.float32(1e30)
    logits[20:] = np.round(logits[20:] / 4)
    seen = [{int(np.argmax(row)): 2, 7: 0} for row in logits]
    penalties = {"seen": seen, "repetition": 1.3, "presence": 0.4, "frequency": 0.2}
    for lists in ({}, penalties, {"bias": [{int(np.argmax(row)): -np.inf, 9: 1.5} for row in logits]}):
        fields = {**around, **lists, "seed": rows, "position": rows * 3, "top_logprobs": rows % 7 - 1}
        greedy = check(logits, **fields)
        assert lists or np.array_equal(greedy["tokens"], logits.argmax(axis=1))
        for temperature in COLD:
            got = check(logits, **fields, temperature=temperature)
            assert np.array_equal(got["tokens"], greedy["tokens"])


@settings(max_examples=elsewhere([100, 30], [30])[0])
@given(
    bits=st.integers(0, 0x7F7FFFFF),
    exponent=st.integers(-149, 127),
    tie=st.booleans(),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([0.3, 1.0]),
)
def test_any_temperature_of_fp32(bits: int, exponent: int, tie: bool, top_k: int, top_p: float) -> None:
    """From 0 over the subnormals to the largest: one definition, and never a token that greedy rules out."""
    temperature = np.array(bits, np.uint32).view(np.float32)
    steps = np.array([[-3, -1, 2, 2 if tie else 1, 1.5, -2, 0]])
    logits = np.ldexp(steps, exponent).clip(-3e38, 3e38).astype(np.float32)
    got = check(logits, temperature=temperature, top_k=top_k, top_p=top_p, seed=bits, top_logprobs=3)
    distinct = float(np.diff(np.unique(logits))[-1])
    if temperature < 1e-30 or float(logits.max()) / float(temperature) > 3.5e38:
        assert got["tokens"][0] == logits.argmax()
    elif distinct > 110 * float(temperature):
        assert logits[0, got["tokens"][0]] == logits.max()


@pytest.mark.parametrize("temperature", [1e-3, 1e-2, 0.1, 0.3])
def test_logits_that_overflow_when_divided_are_greedy(temperature: float) -> None:
    """An earlier version took the lowest index of all logits that overflow, which need not be the largest
    logit."""
    logits = np.array([[2e38, 1e38, 3e38, 3e38, -3e38], [-1e38, -3e38, -3e38, -3e38, -2e38]], np.float32)
    tokens = check(logits, temperature=temperature, position=[1, 2])["tokens"]
    assert tokens.tolist() == [2, 0]


def test_nan_and_infinity(logits: np.ndarray) -> None:
    logits[0] = np.nan
    logits[1] = -np.inf
    logits[2, ::3] = np.nan
    logits[3, [5, 4000]] = np.inf
    logits[4, 10:] = -np.inf
    logits[5, 1:] = np.nan
    ways = {"temperature": [0.0, 1.0] * 10, "top_p": [1.0, 1.0, 0.9, 0.9] * 5}
    got = check(logits, **ways, top_logprobs=3)
    assert got["tokens"][:2].tolist() == [0, 0]
    assert got["tokens"][3] == 5
    assert got["top_ids"][5].tolist() == [0, -1, -1]


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}, {"chosen": 7}, {"bias": [{7: 1.0}] * 9}],
)
def test_rows_that_are_not_numbers_are_told(fields: dict, logits: np.ndarray) -> None:
    x = logits[:9].copy()
    x[1, 17], x[3, -1], x[4, 0], x[6, 4990] = np.nan, np.inf, -np.inf, np.nan
    x[5] = np.float32(3.4e38)
    assert check(x, **fields)["overflowed"] == [1, 3, 4, 6]
    banned = sampling(9, bias=[{7: -np.inf, 8: np.inf}] * 9, temperature=1.0)
    assert _native.sample(logits[:9], banned)["overflowed"] == [], "that is the caller's, not the model's"


def test_chosen_tokens_are_reported_not_drawn(logits: np.ndarray) -> None:
    chosen = np.arange(len(logits)) * 100
    got = check(logits, temperature=1.0, chosen=chosen)
    assert np.array_equal(got["tokens"], chosen)
    rows = np.arange(len(logits))
    assert np.allclose(got["logprobs"], log_softmax(logits)[rows, chosen], atol=2e-5)


def test_the_draw_depends_on_seed_and_position_alone(logits: np.ndarray) -> None:
    rows = len(logits)
    fields = {"temperature": 0.9, "top_p": 0.95, "seed": np.arange(rows), "position": 17}
    whole = check(logits, **fields)["tokens"]
    for r in range(rows):
        alone = _native.sample(logits[r : r + 1], sampling(1, **{**fields, "seed": r}))
        assert alone["tokens"][0] == whole[r]


def test_frequencies_follow_the_probabilities() -> None:
    p = np.array([0.5, 0.3, 0.15, 0.05])
    n = 4000
    logits = np.ascontiguousarray(np.broadcast_to(np.log(p).astype(np.float32), (n, 4)))
    tokens = _native.sample(logits, sampling(n, temperature=1.0, seed=9, position=np.arange(n)))["tokens"]
    counts = np.bincount(tokens, minlength=4)
    chi_squared = ((counts - n * p) ** 2 / (n * p)).sum()
    assert chi_squared < 16.3  # 0.1 % point of 3 degrees of freedom


def test_uniform_numbers_are_uniform() -> None:
    for drawn in ([uniform(1, i) for i in range(4000)], [uniform(i, 1) for i in range(4000)]):
        counts = np.bincount((np.array(drawn) * 10).astype(int), minlength=10)
        assert ((counts - 400) ** 2 / 400).sum() < 27.9  # 0.1 % point of 9 degrees of freedom
    assert uniform(2**64 - 1, 2**40) != uniform(0, 2**40)


@settings(max_examples=elsewhere([150, 60], [60])[0])
@given(data=st.data())
def test_small_vocabularies(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 90))
    steps = st.integers(-12, 12).map(lambda i: i / 4)  # coarse, so that there are ties
    x = np.array(data.draw(st.lists(steps, min_size=vocab, max_size=vocab)), np.float32)[None]
    words = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=-(-vocab // 32), max_size=-(-vocab // 32))
    masks = data.draw(st.none() | words.map(lambda one: np.array([one], np.int32)))
    check(
        x,
        masks,
        masked=-1 if masks is None else 0,
        temperature=data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        top_k=data.draw(st.integers(0, vocab + 1)),
        top_p=data.draw(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.11, 0.6])),
        seed=data.draw(st.integers(0, 2**64 - 1)),
        position=data.draw(st.integers(0, 2**40)),
        top_logprobs=data.draw(st.integers(-1, vocab)),
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": np.nan}, "NaN"),
        ({"temperature": np.inf}, "temperature must be finite"),
        ({"top_p": -0.1}, "top_p must be 0"),
        ({"top_p": 1.001}, "top_p must be 0"),
        ({"top_p": np.nan}, "NaN"),
        ({"min_p": -1e-9}, "min_p must be 0"),
        ({"temperature": 1.0, "min_p": 1.1}, "min_p must be 0"),
        ({"temperature": 1.0, "top_k": 5, "min_p": np.inf}, "min_p must be 0"),
        ({"repetition": 0.0}, "repetition"),
        ({"repetition": np.inf}, "repetition"),
        ({"presence": -np.inf}, "presence must be finite"),
        ({"frequency": np.inf}, "frequency must be finite"),
        ({"frequency": np.nan}, "NaN"),
        ({"top_k": -1}, "top_k"),
        ({"position": -1}, "position"),
        ({"top_logprobs": -2}, "top_logprobs"),
        ({"top_logprobs": VOCAB + 1}, "top_logprobs"),
        ({"chosen": -2}, "chosen"),
        ({"bias": [{3: np.nan}]}, "bias"),
        ({"seen": [{3: -1}]}, "seen_counts"),
        ({"chosen": VOCAB}, "chosen"),
        ({"masked": 1}, "count the masks"),
        ({"masked": -2}, "count the masks"),
        ({"masked": 0, "chosen": 7}, "has no mask"),
        ({"bias": [{VOCAB: 1.0}]}, "bias id"),
        ({"seen": [{-1: 1}]}, "seen id"),
    ],
)
def test_refuses(fields: dict, message: str, logits: np.ndarray) -> None:
    with pytest.raises(ValueError, match=message):
        _native.sample(logits[:1], sampling(1, **fields))


def test_refuses_other_shapes(logits: np.ndarray) -> None:
    with pytest.raises(ValueError, match="one value a logit row"):
        _native.sample(logits[:2], sampling(1))
    with pytest.raises(TypeError):
        _native.sample(logits.astype(np.float64), sampling(len(logits)))


def random_masks(rng: np.random.Generator, rows: int, vocab: int = VOCAB) -> np.ndarray:
    """Returns masks that each allow another share of the tokens: one token, few, about as many as are
    gathered, most."""
    shares = np.resize([0.0, 1e-3, 0.02, 0.06, 0.065, 0.5, 0.97, 1.0], rows)
    allowed = rng.random((rows, vocab)) < shares[:, None]
    allowed[np.arange(rows), rng.integers(0, vocab, rows)] = True
    packed = np.packbits(allowed, axis=1, bitorder="little")
    width = -(-vocab // 32) * 4
    # Bits beyond the vocabulary are set, and have no meaning.
    padded = np.pad(packed, ((0, 0), (0, width - packed.shape[1])), constant_values=0xFF)
    padded[:, vocab // 8] |= (0xFF << vocab % 8) & 0xFF
    return np.ascontiguousarray(padded).view(np.int32)


MASKED = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 2.0, "top_k": 400, "top_p": 0.9, "min_p": 0.01},
]


@pytest.mark.parametrize(("fields", "lists"), in_turn(MASKED, [False, True]))
def test_masks_equal_the_definition(fields: dict, lists: bool, logits: np.ndarray) -> None:
    """Masked rows beside others; ties; NaN; biases and penalties of tokens that are and are not allowed."""
    rng = np.random.default_rng(11)
    rows = np.arange(len(logits))
    logits[8:16] = np.round(logits[8:16])
    logits[16, ::5] = np.nan
    masked = np.where(rows % 3 < 2, np.cumsum(rows % 3 < 2) - 1, -1)
    masks = random_masks(rng, int(masked.max()) + 1)
    more = {}
    if lists:
        ids = [rng.choice(VOCAB, 300, replace=False) for _ in rows]
        more = {
            "bias": [{int(i): float(rng.choice([-np.inf, 3.0, -4.0])) for i in row[:80]} for row in ids],
            "seen": [
                {int(i): int(n) for i, n in zip(row, rng.integers(0, 3, 300), strict=True)} for row in ids
            ],
            "repetition": 1.2,
            "presence": 0.3,
            "frequency": 0.1,
        }
    seeds = {"seed": rows, "position": rows * 7}
    got = check(logits, masks, **fields, **more, **seeds, masked=masked, top_logprobs=rows % 4 - 1)
    assert got["overflowed"] == [16]
    free = _native.sample(logits, sampling(len(rows), **fields, **more, **seeds))
    assert np.array_equal(got["tokens"][masked < 0], free["tokens"][masked < 0])
    for row, mask in zip(rows[masked >= 0], masks, strict=True):
        token = int(got["tokens"][row])
        allowed = mask.view(np.uint32)[token >> 5] >> (token & 31) & 1
        assert allowed or (lists and token == 0), "0: all that are allowed were banned"


def test_masks_that_allow_nothing_take_token_0(logits: np.ndarray) -> None:
    masks = np.zeros((2, -(-VOCAB // 32)), np.int32)
    masks[1, 9] = 1 << 3
    bias = [{}, {9 * 32 + 3: -np.inf}]
    got = check(logits[:2], masks, masked=[0, 1], bias=bias, temperature=[1.0, 0.0])
    assert got["tokens"].tolist() == [0, 0]


@pytest.mark.parametrize("masks", [None, np.zeros((1, 157), np.int32), np.zeros((2, 156), np.int32)])
def test_refuses_masks_of_another_size(masks: np.ndarray | None, logits: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a mask for each"):
        _native.sample(logits[:2], sampling(2, masked=[0, 1]), masks)
