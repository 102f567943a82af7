"""Kernels of AWS's nki-library, unmodified, from a checkout: their results against numpy's, and their times.

    python benchmarks/nki_library.py ../nki-library             all of them, on trn2
    python benchmarks/nki_library.py ../nki-library rope moe    those whose names have one of these words

They are written in the current dialect. Shapes are small, so that all take a minute; references are in fp64.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from corepipe import nki
from corepipe.nki.core.errors import KernelError

Array = npt.NDArray[Any]
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Run:
    """A call of a kernel, and the results that it should give; tolerance: part of their largest value."""

    kernel: Any
    arguments: Sequence[Any]
    wanted: Sequence[Array]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    tolerance: float = 1e-5


CASES: dict[str, Callable[[], Run]] = {}


def case(make: Callable[[], Run]) -> Callable[[], Run]:
    CASES[make.__name__] = make
    return make


def entry(module: str, name: str = "") -> Callable[..., Any]:
    """Returns a kernel of the library."""
    return getattr(importlib.import_module(f"nkilib.{module}"), name or module.rpartition(".")[2])


def choice(kind: str, name: str) -> object:
    """Returns a member of one of the library's enumerations."""
    return getattr(getattr(importlib.import_module("nkilib.core.utils.common_types"), kind), name)


def normal(*shape: int, dtype: npt.DTypeLike = BF16, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32).astype(dtype)


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rms_norm(x: Array, gamma: Array) -> Array:
    return wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-6) * wide(gamma)


def softmax(scores: Array) -> Array:
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True))


def rotated(x: Array) -> Array:
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


@case
def cumsum() -> Run:
    x = normal(200, 3000, dtype=np.float32)
    return Run(entry("core.cumsum.cumsum"), [x], [np.cumsum(wide(x), -1)])


@case
def cascaded_max() -> Run:
    x = normal(4, 1, 4096, dtype=np.float32)
    return Run(entry("core.max.cascaded_max"), [x], [x.max(-1), x.argmax(-1)])


@case
def rope() -> Run:
    x, cos, sin = (normal(*s, dtype=np.float32) for s in ((128, 2, 4, 64), (64, 2, 64), (64, 2, 64)))
    a, b, c, s = x[:64], x[64:], cos[:, :, None], sin[:, :, None]
    return Run(
        entry("core.embeddings.rope", "RoPE"), [x, cos, sin], [np.concatenate([a * c - b * s, b * c + a * s])]
    )


@case
def rope_interleaved() -> Run:
    x, cos, sin = (normal(*s, dtype=np.float32) for s in ((128, 2, 4, 64), (64, 2, 64), (64, 2, 64)))
    a, b, c, s = x[::2], x[1::2], cos[:, :, None], sin[:, :, None]
    wanted = np.stack([a * c - b * s, b * c + a * s], 1).reshape(x.shape)
    flags = {"contiguous_layout": False, "relayout_in_sbuf": True}
    return Run(entry("core.embeddings.rope", "RoPE"), [x, cos, sin], [wanted], flags)


@case
def rope_hf() -> Run:
    q, k, cos, sin = (
        normal(*s, dtype=np.float32) for s in ((1, 4, 256, 128), (1, 2, 256, 128), (256, 128), (256, 128))
    )
    wanted = [x * cos + rotated(x) * sin for x in (q, k)]
    return Run(entry("core.embeddings.rope_hf"), [q, k, np.zeros_like(q), np.zeros_like(k), cos, sin], wanted)


def convolved(x: Array, w: Array, stride: int, pads: tuple[int, int], dilation: int) -> Array:
    padded = np.pad(wide(x), ((0, 0), (0, 0), pads))
    count = (padded.shape[2] - dilation * (len(w) - 1) - 1) // stride + 1
    starts = [slice(dilation * i, dilation * i + stride * (count - 1) + 1, stride) for i in range(len(w))]
    return sum(np.einsum("bcl,co->bol", padded[:, :, s], wide(f)) for s, f in zip(starts, w, strict=True))


@case
def conv1d() -> Run:
    x, w, bias = (
        normal(2, 64, 100, dtype=np.float32),
        normal(3, 64, 32, dtype=np.float32),
        normal(32, dtype=np.float32),
    )
    wanted = convolved(x, w, 1, (1, 1), 1) + bias[:, None]
    return Run(entry("experimental.conv.conv1d"), [x, w, bias, 1, (1, 1)], [wanted])


@case
def conv1d_with_strides() -> Run:
    x, w, bias = normal(2, 200, 300), normal(5, 200, 140, scale=0.05), normal(140)
    wanted = silu(convolved(x, w, 2, (4, 3), 2) + wide(bias)[:, None])
    function = choice("ActFnType", "SiLU")
    return Run(
        entry("experimental.conv.conv1d"), [x, w, bias, 2, (4, 3), 2, function], [wanted], tolerance=0.01
    )


@case
def depthwise_conv1d() -> Run:
    x, w = normal(2, 128, 1, 64, dtype=np.float32), normal(128, 1, 1, 4, dtype=np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (3, 0)))
    wanted = sum(padded[..., i : i + 64] * w[None, :, :, 0, i, None] for i in range(4))
    kernel = entry("experimental.conv.depthwise_conv1d", "depthwise_conv1d_implicit_gemm")
    return Run(kernel, [x, w, ((0, 0), (3, 0))], [wanted], {"feature_group_count": 128})


def loss_inputs() -> tuple[Array, Array, Array, Array]:
    x, targets = normal(64, 5000, dtype=np.float32), RNG.integers(0, 5000, 64).astype(np.int32)
    lse = np.log(np.exp(wide(x)).sum(-1))
    return x, targets, lse, np.eye(5000)[targets]


@case
def cross_entropy() -> Run:
    x, targets, lse, hot = loss_inputs()
    kernel = entry("experimental.loss.cross_entropy", "cross_entropy_forward")
    return Run(kernel, [x, targets, 32, 2048, np.float32], [lse - (wide(x) * hot).sum(-1), lse])


@case
def cross_entropy_backward() -> Run:
    x, targets, lse, hot = loss_inputs()
    kernel = entry("experimental.loss.cross_entropy", "cross_entropy_backward")
    arguments = [x, targets, lse.astype(np.float32), "mean", 32, 2048, np.float32, False]
    return Run(kernel, arguments, [(np.exp(wide(x) - lse[:, None]) - hot) / 64])


def attended(
    q: Array, k: Array, v: Array, allowed: Array, scale: float = 1.0, sink: Array | None = None
) -> Array:
    """Returns the attention of q [B, S, d] to k [B', d, T] and v [B', T, d], where it is allowed."""
    groups = len(q) // len(k)
    scores = wide(q) @ np.repeat(wide(k), groups, 0) * scale
    scores = np.where(allowed, scores, -np.inf)
    if sink is not None:
        scores = np.concatenate([scores, np.broadcast_to(wide(sink)[:, :, None], (*scores.shape[:2], 1))], -1)
    return softmax(scores)[..., : v.shape[1]] @ np.repeat(wide(v), groups, 0)


def causal(queries: int, keys: int, before: int = 0) -> Array:
    return np.arange(keys)[None] <= np.arange(queries)[:, None] + before


def attention(q: Array, k: Array, v: Array, wanted: Array, **keywords: object) -> Run:
    return Run(entry("core.attention.attention_cte"), [q, k, v], [wanted], keywords, tolerance=0.01)


@case
def attention_cte() -> Run:
    q, k, v = normal(1, 1024, 128), normal(1, 128, 1024), normal(1, 1024, 128)
    return attention(q, k, v, attended(q, k, v, causal(1024, 1024), 0.09), scale=0.09)


@case
def attention_cte_to_everything() -> Run:
    q, k, v = normal(2, 512, 64), normal(2, 64, 768), normal(2, 768, 64)
    wanted = attended(q, k, v, np.ones((512, 768), bool), 0.125)
    return attention(q, k, v, wanted, scale=0.125, causal_mask=False)


@case
def attention_cte_groups_in_a_window() -> Run:
    q, k, v = normal(4, 1024, 64, scale=0.125), normal(2, 64, 1024), normal(2, 1024, 64)
    allowed = causal(1024, 1024) & ~causal(1024, 1024, -200)
    return attention(q, k, v, attended(q, k, v, allowed), sliding_window=200)


@case
def attention_cte_with_a_sink() -> Run:
    q, k, v, sink = normal(2, 512, 64, scale=0.125), normal(2, 64, 512), normal(2, 512, 64), normal(2, 1)
    return attention(q, k, v, attended(q, k, v, causal(512, 512), sink=sink), sink=sink)


@case
def attention_cte_after_a_prefix() -> Run:
    q, k, v = normal(1, 512, 128, scale=0.09), normal(1, 128, 512), normal(1, 512, 128)
    before_k, before_v = normal(1, 128, 1024), normal(1, 1024, 128)
    keys = np.concatenate([before_k[:, :, :700], k], 2)
    wanted = attended(q, keys, np.concatenate([before_v[:, :700], v], 1), causal(512, 1212, 700))
    used = np.array([700], np.int32)
    return attention(q, k, v, wanted, k_prior=before_k, v_prior=before_v, prior_used_len=used)


@case
def attention_cte_of_packed_sequences() -> Run:
    q, k, v, at = normal(1, 512, 128, scale=0.09), normal(1, 128, 512), normal(1, 512, 128), np.arange(512)
    low, high = np.where(at < 200, 0, 200), np.minimum(np.where(at < 200, 200, 512), at + 1)
    allowed = (at[None] >= low[:, None]) & (at[None] < high[:, None])
    bounds = {"bound_min": low.astype(np.float32)[:, None], "bound_max": high.astype(np.float32)[:, None]}
    return attention(q, k, v, attended(q, k, v, allowed), **bounds)


@case
def attention_bwd() -> Run:
    q, k, v, dy = (normal(1, 1, 64, 512, dtype=np.float32) for _ in range(4))
    queries, keys, values, gradient = (wide(x)[0, 0].T for x in (q, k, v, dy))
    scores = queries @ keys.T / 8
    lse = np.log(np.exp(scores).sum(-1))
    p = np.exp(scores - lse[:, None])
    out = p @ values
    ds = p * (gradient @ values.T - (gradient * out).sum(-1, keepdims=True))
    wanted = [(ds @ keys / 8).T, (ds.T @ queries / 8).T, (p.T @ gradient).T]
    arguments = [q, k, v, out.T[None, None].astype(np.float32), dy, lse.reshape(1, 1, 4, 128).swapaxes(2, 3)]
    arguments[-1] = np.ascontiguousarray(arguments[-1], np.float32)
    return Run(entry("core.attention.attention_bwd"), arguments, wanted, {"mixed_precision": True})


@case
def output_projection() -> Run:
    x, w, bias = normal(1, 4, 128, 512), normal(512, 1024), normal(1, 1024)
    wanted = wide(x).reshape(512, 512).T @ wide(w) + wide(bias)
    kernel = entry("core.output_projection.output_projection_cte.output_projection_cte")
    return Run(kernel, [x, w, bias], [wanted], tolerance=0.01)


@case
def output_projection_of_tokens() -> Run:
    x, w, bias = normal(128, 2, 4, 4), normal(512, 1024), normal(1, 1024)
    wanted = np.einsum("dbns,ndh->bsh", wide(x), wide(w).reshape(4, 128, 1024)) + wide(bias)
    return Run(entry("core.output_projection.output_projection_tkg"), [x, w, bias], [wanted], tolerance=0.01)


@case
def qkv_after_a_norm() -> Run:
    x, w, bias, gamma = normal(1, 512, 1024), normal(1024, 768), normal(1, 768), normal(1, 1024)
    norm = choice("NormType", "RMS_NORM")
    keywords = {"bias": bias, "fused_norm_type": norm, "gamma_norm_weights": gamma}
    return Run(
        entry("core.qkv.qkv"), [x, w], [rms_norm(x, gamma) @ wide(w) + wide(bias)], keywords, tolerance=0.01
    )


@case
def qkv_of_tokens() -> Run:
    x, w, gamma = normal(4, 1, 1024), normal(1024, 768), normal(1, 1024)
    norm = choice("NormType", "RMS_NORM")
    keywords = {"fused_norm_type": norm, "gamma_norm_weights": gamma}
    return Run(entry("core.qkv.qkv"), [x, w], [rms_norm(x, gamma) @ wide(w)], keywords, tolerance=0.01)


@case
def qkv_with_rope() -> Run:
    x, w, cos, half = normal(1, 256, 512), normal(512, 384), normal(1, 256, 64), normal(1, 256, 32)
    sin = np.concatenate([half, half], -1)
    heads = (wide(x) @ wide(w)).reshape(1, 256, 6, 64)
    turned = heads[:, :, :4] * wide(cos)[:, :, None] + rotated(heads[:, :, :4]) * wide(sin)[:, :, None]
    wanted = np.concatenate([turned, heads[:, :, 4:]], 2)
    keywords = {
        "fused_rope": True,
        "cos_cache": cos,
        "sin_cache": sin,
        "d_head": 64,
        "num_q_heads": 2,
        "num_kv_heads": 2,
    }
    return Run(entry("core.qkv.qkv"), [x, w], [wanted], keywords, tolerance=0.01)


def routed(activation: str, **keywords: object) -> Run:
    x, w = normal(512, 64), normal(512, 32, scale=0.05)
    logits = wide(x).T @ wide(w)
    p = softmax(logits) if activation == "SOFTMAX" else 1 / (1 + np.exp(-logits))
    best = np.argsort(-p, 1)[:, :4]
    chosen = np.zeros_like(p)
    np.put_along_axis(chosen, best, np.take_along_axis(p, best, 1), 1)
    outputs = [np.zeros((64, 32), np.float32), np.zeros((64, 32), np.float32), np.zeros((64, 4), np.uint32)]
    arguments = [x, w, np.zeros((1, 32), BF16), *outputs, choice("RouterActFnType", activation), 4, 0, 0]
    wanted = [logits, best, chosen / chosen.sum(1, keepdims=True)]
    return Run(entry("core.router_topk.router_topk"), arguments, wanted, {"norm_topk_prob": True, **keywords})


@case
def router_by_one_hot() -> Run:
    return routed("SOFTMAX")


@case
def router_by_scattering_transfers() -> Run:
    return routed("SIGMOID", use_indirect_dma_scatter=True)


@case
def nonzero_indices() -> Run:
    x = (RNG.random((256, 4)) < 0.3).astype(np.float32)
    places = [np.flatnonzero(column) for column in x.T]
    indices = np.array([[*p, *[-1] * (256 - len(p))] for p in places])
    kernel = entry("core.subkernels.find_nonzero_indices")
    return Run(kernel, [x], [indices, np.array([len(p) for p in places])], grid=(2,))


def carried_out(run: Run, target: str) -> tuple[float, nki.Result]:
    """Returns the largest error as a part of the largest value, and the result of the run."""
    result = nki.simulate(run.kernel, *run.arguments, target=target, grid=run.grid, **run.keywords)
    worst = 0.0
    for found, wanted in zip(result.outputs, run.wanted, strict=True):
        difference = np.abs(wide(found).reshape(wanted.shape) - wanted).max()
        worst = max(worst, float(difference / np.abs(wanted).max()))
    return worst, result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--target", default="trn2")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.path / "src" / "nkilib_src"))
    names = [n for n in CASES if not arguments.words or any(word in n for word in arguments.words)]
    equal = 0
    print(f"{'kernel':34} equal    error  predicted us  seconds  findings or refusal")
    for name in names:
        started = time.perf_counter()
        try:
            with nki.installed(), contextlib.redirect_stdout(io.StringIO()):
                run = CASES[name]()
                worst, result = carried_out(run, arguments.target)
        except KernelError as error:
            print(f"{name:34} NO    {error}"[:200])
            continue
        right = worst <= run.tolerance
        equal += right
        seconds, found = time.perf_counter() - started, ", ".join(sorted({f.rule for f in result.findings}))
        answer = "yes" if right else "NO "
        print(f"{name:34} {answer:5} {worst:8.1e} {result.latency_us:13.1f} {seconds:8.1f}  {found}")
    print(f"\n{len(names)} kernels: {equal} equal their references")


if __name__ == "__main__":
    main()
