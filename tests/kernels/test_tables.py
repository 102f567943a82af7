"""The choice of a CPU's table of kernels, and the tables with equal bits, as docs/kernels.md states them."""

from __future__ import annotations

import multiprocessing
import platform
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.kernels import native, packing
from tests.kernels import linears
from tests.kernels.harness import NO_OTHER, AttentionRig
from tests.kernels.linears import Case, random_weights

FUSED = [isa for isa in native().isas() if isa != "portable"]
"""Tables that round a multiply-add once.  SSE2, which portable uses on x86-64, rounds it twice."""

IN_ORDER_OF_K = [isa for isa in FUSED if isa not in {"amx", "avx512"}]
"""Tables that multiply bf16 in fp32, one element after the other, and not by an instruction for pairs."""

VNNI_512 = {"avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"}
NEEDS = {
    "avx512": VNNI_512 | {"avx512vbmi", "avx512_bf16"},
    "avx512-vnni": VNNI_512,
    "avx2-vnni": {"avx2", "fma", "avx_vnni"},
    "avx2": {"avx2", "fma"},
}
"""Linux's names of the CPU features of a table: those that the system lets a process use.  (AMX must be
requested.)"""

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def on() -> Iterator[Callable[..., Any]]:
    """Calls a function in a process whose kernels are those of the ISA that is named first."""
    if len(FUSED) < 2:
        pytest.skip(NO_OTHER if native().left_out() else "this CPU has one table at most besides portable")
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = {
            isa: stack.enter_context(ProcessPoolExecutor(1, context, linears.use_isa, [isa])) for isa in FUSED
        }
        yield lambda isa, function, *args: pools[isa].submit(function, *args).result()


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="Linux on x86-64 says what its CPU has"
)
def test_a_cpu_gets_each_table_whose_instructions_it_has() -> None:
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    want = [isa for isa, needed in NEEDS.items() if needed <= set(flags.split())]
    there = native().isas()
    assert {*there, *native().left_out()} - {"amx"} == {*want, "portable"}
    assert there == [isa for isa in ("amx", *NEEDS, "portable") if isa in there], "best first"


@pytest.mark.parametrize(
    ("kind", "isas"), [("int8", FUSED), ("fp32", FUSED), ("bf16", IN_ORDER_OF_K), ("int8w", IN_ORDER_OF_K)]
)
def test_linears_have_the_same_bits(on: Call, kind: packing.Kind, isas: list[str]) -> None:
    rng = np.random.default_rng(5)
    for rows, n, k in [(1, 33, 70), (6, 64, 640), (45, 50, 1030)]:
        case = Case(rng.standard_normal((rows, k)).astype(np.float32), (random_weights(rng, kind, n, k),))
        want, *others = [on(isa, linears.run, case)[0] for isa in isas]
        for got in others:
            np.testing.assert_array_equal(got, want)


def test_int8_of_what_is_no_number_has_the_same_bits(on: Call) -> None:
    """For an infinity the quantised values are any integers, and the scale is infinite."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((9, 200)).astype(np.float32)
    x[2, 70], x[4, 3], x[7, 130] = np.inf, np.nan, -np.inf
    case = Case(x, (random_weights(rng, "int8", 40, 200),))
    got = [on(isa, linears.run, case)[0] for isa in IN_ORDER_OF_K]
    for other in got[1:]:
        np.testing.assert_array_equal(other, got[0])


@pytest.mark.parametrize(
    ("dtype", "isas"),
    [("fp32", FUSED), ("int8-fp32", FUSED), ("bf16", IN_ORDER_OF_K), ("int8", IN_ORDER_OF_K)],
)
def test_attention_has_the_same_bits(on: Call, dtype: str, isas: list[str]) -> None:
    want, *others = [on(isa, attended, dtype) for isa in isas]
    for got in others:
        np.testing.assert_array_equal(got, want)


def attended(dtype: str) -> Any:
    """Runs an attention with many rows and single ones, more keys than a segment has, and a window."""
    rig = AttentionRig(dtype=dtype, round_bf16=dtype in ("bf16", "int8"), window=550)
    seq = rig.sequence(np.random.default_rng(7), 640, range(40))
    return np.concatenate([rig.run(seq, 640), rig.run(seq, 1, 7, 100)])
