"""`--bits same`: every table of kernels gives the same tokens, logprobs and numbers below them."""

from __future__ import annotations

import functools
import hashlib
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe import LLM, SamplingParams
from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.kernels import _native, packing
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Function
from tests.kernels import linears
from tests.kernels.harness import NO_OTHER, AttentionRig, in_turn, several_tables
from tests.kernels.linears import Case, Weights, random_weights
from tests.kernels.test_adapters import random_rig
from tests.kernels.test_latents import KINDS as LATENT_KINDS
from tests.kernels.test_latents import SHAPES as LATENT_SHAPES
from tests.kernels.test_latents import Rig as LatentRig
from tests.kernels.test_rows import result
from tests.kernels.test_scans import Rig as ScanRig
from tests.kernels.test_scans import cut, rows_of

ISAS = _native.isas()
TINY = Path(__file__).parent / "data" / "tiny"
F32 = np.ndarray

Call = Callable[..., Any]


def begin(isa: str, cache: str) -> None:
    """A process whose kernels are those of a table that have everyone's bits, wherever a test runs some."""
    os.environ["COREPIPE_ISA"], os.environ["COREPIPE_CACHE"] = isa, cache
    assert _native.isa() == isa, "nothing that is imported may choose a table"
    _native.Executor = functools.partial(_native.Executor, same_bits=True)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Skips all where `--bits same` needs a table that the build left out."""
    try:
        _native.same_bits_isa()
    except ValueError:
        pytest.skip(NO_OTHER)


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """The results of a function on each of the CPU's tables."""
    context = multiprocessing.get_context("spawn")
    cache = str(tmp_path_factory.mktemp("cache"))
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, context, begin, (isa, cache))) for isa in ISAS]

        def call(function: Call, *args: object) -> list[Any]:
            return [pool.submit(function, *args).result() for pool in pools]

        yield call


# ---- answers


def answers(model: str, fmt: str, concurrency: int, requests: int) -> str:
    """A digest of what requests are answered, greedy and drawn in every way, with logprobs."""
    rng = np.random.default_rng(3)
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 5},
        {"temperature": 1.0, "top_p": 0.9, "seed": 6},
        {"temperature": 1.3, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2, "seed": 7},
    ]
    params = [
        SamplingParams(**ways[i % 4], max_tokens=6, logprobs=4, prompt_logprobs=1, ignore_eos=True)
        for i in range(requests)
    ]
    prompts = [rng.integers(0, 200, rng.integers(2, 40)).tolist() for _ in params]
    with LLM(str(TINY / model), format=fmt, bits="same", max_num_seqs=concurrency, max_model_len=128) as llm:
        said = [(o.token_ids, o.logprobs, o.prompt_logprobs) for o in llm.generate(prompts, params)]
    return hashlib.sha256(repr(said).encode()).hexdigest()


SOME = ((1, 8), 12)
ALL = pytest.param((1, 4, 8, 32), 32, marks=pytest.mark.slow)


@pytest.mark.parametrize(("concurrencies", "requests"), [SOME, ALL], ids=["some", "all"])
@pytest.mark.parametrize(("fmt", "model"), in_turn(list(FORMATS), ["smollm2", "qwen3"]))
def test_answers_are_the_same_on_every_table_in_every_company(
    everywhere: Call, model: str, fmt: str, concurrencies: tuple[int, ...], requests: int
) -> None:
    found = {digest for c in concurrencies for digest in everywhere(answers, model, fmt, c, requests)}
    assert len(found) == 1


@pytest.mark.parametrize("bits", ["fast", "same"])
def test_a_deployment_says_whose_bits_it_has(tmp_path: Path, bits: str) -> None:
    config = EngineConfig(model=str(TINY / "smollm2"), bits=bits, max_model_len=64, cache_dir=tmp_path)
    deployment = assemble(config, lambda _what, _done: None)
    deployment.replicas[0].executor.close()
    assert deployment.ready.placement["bits"] == bits


# ---- what they are made of


def products(kind: packing.Kind) -> list[F32]:
    """Linears with all that is fused around them."""
    rng, found = np.random.default_rng(5), []
    for rows, n, k in [(1, 33, 70), (6, 64, 640), (45, 50, 1030)]:
        x = rng.standard_normal((rows, k)).astype(np.float32)
        gain = rng.uniform(0.5, 2, k).astype(np.float32)
        gate, up = random_weights(rng, kind, n, k), random_weights(rng, kind, n, k)
        residual = rng.standard_normal((rows, n)).astype(np.float32)
        for rounded in (False, True):
            found += linears.run(Case(x, (gate, up), norm=(gain, 1e-5), glu=True, round_bf16=rounded), 2)
            found += linears.run(Case(x, (gate,), residual=residual, round_bf16=rounded))
    return found


@several_tables
@pytest.mark.parametrize("kind", ["int8", "int8w", "bf16", "fp32", "int4g32m", "int4g64z"])
def test_linears(everywhere: Call, kind: packing.Kind) -> None:
    require_equal(everywhere(products, kind))


def adapted(kind: packing.Kind) -> list[F32]:
    """Rows with adapters of several ranks, and without."""
    slots = [row % 4 - 1 for row in range(40)]
    plain = random_rig(kind, 40, 200, (70, 33))
    gated = random_rig(kind, 40, 200, (70, 70), rounded=True, glu=True)
    return [*plain.run(slots), *gated.run(slots)]


@several_tables
@pytest.mark.parametrize("kind", ["int8", "fp32", "int4g64z"])
def test_adapters(everywhere: Call, kind: packing.Kind) -> None:
    require_equal(everywhere(adapted, kind))


def attended(dtype: str) -> list[F32]:
    """Windows, caps and slopes, many rows and single ones, more keys than a segment; probabilities so small,
    too, that they are no normal numbers."""
    found = []
    for large, length, options in (
        (8, 140, {}),
        (1, 540, {"window": 517}),
        (1, 140, {"softcap": 30.0, "slopes": np.float32([2, 1, 0.5])}),
    ):
        rig = AttentionRig(3, 1, dtype=dtype, round_bf16=dtype in ("bf16", "int8"), **options)
        seq = rig.sequence(np.random.default_rng(7), length, range(34))
        seq.q *= np.float32(large)
        found += [rig.run(seq, length), rig.run(seq, 1, 7, 100)]
        rig.pool.close()
    return found


@several_tables
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8-fp32", "int8"])
def test_attention(everywhere: Call, dtype: str) -> None:
    require_equal(everywhere(attended, dtype))


def rows() -> list[F32]:
    """Functions and norms, also of numbers that are no normal ones, and of infinities."""
    edges = np.float32([0.0, -0.0, 1e-45, -1e-40, 1.2e-38, 88.0, -88.5, -104, 3e38, -3e38, np.inf])
    x = np.concatenate([np.linspace(-130, 130, 4085, dtype=np.float32), edges]).reshape(8, 512)
    y, gain = x[:, ::-1].copy(), np.linspace(0.5, 2, 512, dtype=np.float32)
    numbers = np.clip(x, -1e10, 1e10)
    found = []
    for rounded in (False, True):
        for function in Function:
            found.append(result(lambda p, f=function: p.activation(f.value, 0, 1), [x, 512], 1, rounded))
            found.append(result(lambda p, f=function: p.glu(0, 1, 2, f.value), [x, y, 512], 2, rounded))
        found.append(result(lambda p: p.rms_norm(0, 1, gain, 1e-6), [numbers, 512], 1, rounded))
        found.append(result(lambda p: p.layer_norm(0, 1, gain, gain, 1e-6), [numbers, 512], 1, rounded))
        found.append(result(lambda p: p.normalize(0, 1, 1e-12), [numbers, 512], 1, rounded))
    return found


@several_tables
def test_rows(everywhere: Call) -> None:
    require_equal(everywhere(rows))


def scans() -> list[F32]:
    """Recurrent layers, whose steps and decays are from very small to very large."""
    found = []
    for rounded in (False, True):
        rig, sequence = ScanRig(2, 512, rounded=rounded), rows_of(5, 150)
        sequence[3] *= np.linspace(0, 60, 150, dtype=np.float32)[:, None]
        found += rig.run([(cut(sequence, 0, 149), 0)], [[1]])
        found += rig.run([(cut(sequence, 149, 150), 149)], [[1]])
        rig.pool.close()
    return found


@several_tables
def test_scans(everywhere: Call) -> None:
    require_equal(everywhere(scans))


def latents() -> list[F32]:
    """Attention over latents, in the formats and caches of which bits are the same everywhere."""
    found = []
    for kind in LATENT_KINDS:
        for shape, length in zip(LATENT_SHAPES[1:], (530, 70, 70), strict=True):
            rig = LatentRig(shape, kind)
            found.append(rig.run(rig.sequence(3, length), [*range(34)], length - 20, length - 19))
            rig.pool.close()
    return found


@several_tables
def test_latents(everywhere: Call) -> None:
    require_equal(everywhere(latents))


def require_equal(found: list[list[F32]]) -> None:
    """To the bit; which NaN it is, nobody asks."""
    want, *others = found
    for isa, other in zip(ISAS[1:], others, strict=True):
        for number, (a, b) in enumerate(zip(want, other, strict=True)):
            bits = [np.where(np.isnan(x), np.float32(np.nan), x).view(np.int32) for x in (a, b)]
            np.testing.assert_array_equal(*bits, f"{isa}, {number}")


# ---- multiply-adds


def multiply_adds(w: F32, x: F32) -> F32:
    """fp32 w0 x0 + w1 x1 of pairs [n, 2], in order: of many rows, or of one where it is a fifth of them."""
    (whole,) = linears.run(Case(x, (Weights("fp32", w, None),)))
    found = np.diagonal(whole).copy()
    for i in range(0, len(w), 5):
        (alone,) = linears.run(Case(x[i : i + 1], (Weights("fp32", w[i : i + 1], None),)))
        found[i] = alone[0, 0]
    return found


def nearest(exact: Fraction) -> np.float32:
    """The nearest fp32, ties to even."""
    near = np.float32(float(exact))
    around = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.int32)) & 1))


def test_multiply_adds_are_rounded_once(everywhere: Call) -> None:
    """Against exact arithmetic: sums that nearly vanish, ties, and numbers below the normal ones."""
    rng = np.random.default_rng(11)
    n = 200
    w, x = (np.ldexp(rng.uniform(-1, 1, (n, 2)), rng.integers(-12, 12, (n, 2))) for _ in range(2))
    w[:50, 0], x[:50, 0] = (
        -w[:50, 1],
        x[:50, 1] * (1 + rng.integers(-2, 3, 50) * 2.0**-23),
    )  # they nearly vanish
    x[50:100] = np.ldexp(x[50:100], -140)  # below the normal numbers
    w[100:150] = np.ldexp(np.round(w[100:150] * 64), -6)  # few bits: ties
    w[100:150, 1] *= 2.0 ** -rng.integers(18, 26, 50)
    w, x = w.astype(np.float32), x.astype(np.float32)
    first = w[:, 0] * x[:, 0]
    want = [
        nearest(Fraction(float(c)) + Fraction(float(a)) * Fraction(float(b)))
        for a, b, c in zip(w[:, 1], x[:, 1], first, strict=True)
    ]
    for got in everywhere(multiply_adds, w, x):
        np.testing.assert_array_equal(got, want)
    assert all(math.isfinite(number) for number in want)
