"""Inputs and references of public NKI kernels that come with none in numpy: tutorials of AWS's.

Only inputs and results are here; the kernels stay in the checkout that `nki_public.py` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """Kernels of a file that compute the same.

    path: end of the file's path.  entries: names of the kernels.  inputs: makes the arguments.
    reference: gives the result, or several, in fp64.  tolerance: part of the result's largest value.
    host: the functions are called on the host, and start the kernel themselves: their time is not known.
    """

    path: str
    entries: Sequence[str]
    inputs: Callable[[np.random.Generator], list[Any]]
    reference: Callable[..., Any]
    grid: tuple[int, ...] = ()
    tolerance: float = 1e-3
    host: bool = False
    keywords: Mapping[str, Any] = field(default_factory=dict)


def normal(
    *shapes: tuple[int, ...], dtype: npt.DTypeLike = np.float32
) -> Callable[[np.random.Generator], list[Any]]:
    """Returns a maker of arrays of normal values."""
    return lambda rng: [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def ssm_inputs(rng: np.random.Generator) -> list[Any]:
    """Returns delta, u, A, B and C of Mamba-1, of its tutorial's shapes but for a shorter sequence."""
    delta, u = rng.uniform(0, 1, (1, 256, 1024)), rng.standard_normal((1, 256, 1024))
    a, (b, c) = -rng.uniform(0, 1, (256, 16)), rng.standard_normal((2, 1, 16, 1024))
    return [v.astype(np.float32) for v in (delta, u, a, b, c)]


def ssm(delta: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    """Returns Mamba-1's output: h = exp(delta A) h + delta B u; the sum over states of C h."""
    delta, u, a, b, c = (v.astype(np.float64) for v in (delta, u, a, b, c))
    state, out = np.zeros((*u.shape[:2], a.shape[1])), np.empty_like(u)
    for t in range(u.shape[2]):
        entering = (delta[:, :, t] * u[:, :, t])[..., None] * b[:, None, :, t]
        state = np.exp(delta[:, :, t, None] * a) * state + entering
        out[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    return out


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_of_columns(q: Array, k: Array, v: Array) -> Array:
    """Returns attention of [head_dim, tokens] each, not scaled."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    return softmax(q.T @ k) @ v.T


def attention_of_rows(q: Array, k: Array, v: Array) -> Array:
    """Returns attention of [tokens, head_dim] each with a scale of 1/8."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    return softmax(q @ k.T * 0.125) @ v


def small(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[Any]]:
    """Returns a maker of arrays of values between -1 and 1."""
    return lambda rng: [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def product(a: Array, b: Array) -> Array:
    """Returns a transposed, times b."""
    return a.T.astype(np.float64) @ b.astype(np.float64)


def transposed_rows(x: Array, shape: tuple[int, int]) -> Array:
    """Returns each row, a matrix of `shape`, transposed."""
    return x.reshape(len(x), *shape).transpose(0, 2, 1).reshape(x.shape)


def windows(x: Array, size: int) -> Array:
    """Returns [channels, rows, size, columns, size] of [channels, height, width]."""
    c, h, w = x.shape
    return x.reshape(c, h // size, size, w // size, size).astype(np.float64)


def layer_norm(x: Array, epsilon: float, gamma: Array, beta: Array) -> Array:
    x = x.astype(np.float64)
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + epsilon) * gamma + beta


def rms_norm(x: Array, gain: Array) -> Array:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(1, keepdims=True)) * gain


def sliding_maximum(x: Array, size: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size)).max((2, 3))


def sum_of(a: Array, b: Array) -> Array:
    return a.astype(np.float64) + b.astype(np.float64)


def images(rng: np.random.Generator) -> list[Any]:
    return [rng.standard_normal((64, 48, 48)).astype(np.float32), 2]


ADD = "tensor_addition_nki_kernels.py"
MATMUL = "matrix_multiplication_nki_kernels.py"
ATTENTION = "attention_kernels.py"
LAYOUTS = ("layout-pass.py", "layout-dynamic-loop.py", "layout-loop.py")
STARTED = ("getting_started_baremetal.py", "getting_started_jax.py", "getting_started_torch.py")
HALF = np.float16

CASES = [
    Case("/" + ADD, ["nki_tensor_add_kernel_"], normal((256, 1024), (256, 1024), dtype=HALF), sum_of, (2, 2)),
    Case("/" + ADD, ["nki_tensor_add"], normal((256, 1024), (256, 1024), dtype=HALF), sum_of, host=True),
    Case(
        "/spmd_" + ADD,
        ["nki_tensor_add_kernel_"],
        normal((256, 1024), (256, 1024), dtype=HALF),
        sum_of,
        (2, 2),
    ),
    Case("/spmd_" + ADD, ["nki_tensor_add"], normal((256, 1024), (256, 1024), dtype=HALF), sum_of, host=True),
    Case(
        "/spmd_multiple_nc_" + ADD,
        ["nki_tensor_add_nc2"],
        normal((512, 2048), (512, 2048), dtype=HALF),
        sum_of,
        host=True,
    ),
    Case(
        "transpose2d_nki_kernels.py",
        ["tensor_transpose2D_kernel_"],
        lambda rng: [rng.standard_normal((128, 24)).astype(np.float32), (4, 6)],
        transposed_rows,
    ),
    Case(
        "average_pool2d_nki_kernels.py",
        ["tensor_avgpool_kernel"],
        images,
        lambda x, size: windows(x, size).mean((2, 4)),
    ),
    Case(
        "index-case-3.py",
        ["tensor_maxpool_kernel_"],
        images,
        lambda x, size: windows(x, size).max((2, 4)),
    ),
    Case(
        "index-case-1.py",
        ["tensor_split_kernel_"],
        normal((128, 97)),
        lambda x: (x[:, 0::2], x[:, 1::2]),
    ),
    Case(MATMUL, ["nki_matmul_basic_"], normal((128, 64), (128, 512), dtype=BF16), product, tolerance=1e-2),
    Case(
        MATMUL,
        ["nki_matmul_tiled_", "nki_matmul_hoist_load_", "nki_matmul_block_free_dimension_"],
        normal((512, 512), (512, 1024), dtype=BF16),
        product,
        tolerance=1e-2,
    ),
    Case(
        MATMUL,
        ["nki_matmul_fully_optimized_"],
        normal((1024, 2048), (1024, 1024), dtype=BF16),
        product,
        tolerance=1e-2,
    ),
    Case("mamba_nki_kernels.py", ["mamba_v1", "mamba_v2", "mamba_v3"], ssm_inputs, ssm),
    Case(
        ATTENTION,
        ["attn_fwd_v1", "attn_fwd_v2"],
        small((128, 128), (128, 128), (128, 128)),
        attention_of_columns,
        tolerance=1e-2,
    ),
    Case(
        ATTENTION,
        [f"attn_fwd_v{n}" for n in ("3", "4", "5", "6", "7", "8", "8a", "9", "10", "11")],
        small((128, 4096), (128, 4096), (128, 4096)),
        attention_of_columns,
        tolerance=2e-2,
    ),
    Case(
        "sd_attention_nki_kernels.py",
        ["fused_self_attn_for_SD_small_head_size"],
        small((4096, 64), (4096, 64), (4096, 64)),
        attention_of_rows,
        tolerance=2e-2,
    ),
    Case(
        "layernorm_nki_kernel.py",
        ["nki_layernorm_kernel_v1", "nki_layernorm_kernel_v2"],
        lambda rng: [
            rng.standard_normal((300, 1024)).astype(np.float32),
            EPS,
            *rng.standard_normal((2, 1024)).astype(np.float32),
        ],
        layer_norm,
    ),
    Case("rmsnorm_nki_kernels.py", ["nki_rmsnorm_kernel"], normal((250, 512), (512,)), rms_norm),
    *(Case(name, ["tensor_exp_kernel_"], normal((128, 512)), np.exp) for name in LAYOUTS),
    Case("layout-violation.py", ["tensor_exp_kernel_"], normal((256, 512)), np.exp),
    *(Case(name, ["nki_tensor_add_kernel"], normal((4, 3), (4, 3), dtype=HALF), sum_of) for name in STARTED),
    Case("nki_simulate_example.py", ["add_kernel"], normal((128, 512), (128, 512)), sum_of),
    Case(
        "mm-nisa-spmd.py",
        ["matmul_128x128x512_spmd"],
        normal((128, 512), (128, 1024), dtype=BF16),
        product,
        (4, 2),
        1e-2,
    ),
    Case(
        "mm-nl-spmd.py",
        ["matmul_128x128x512_spmd"],
        normal((512, 128), (128, 1024), dtype=BF16),
        lambda a, b: product(a.T, b),
        (4, 2),
        1e-2,
    ),
    Case(
        "maxpooling.py",
        ["max_pooling_2d_stride_1"],
        lambda rng: [rng.standard_normal((448, 448)).astype(np.float32), 3],
        sliding_maximum,
    ),
    Case(
        "contributed/matmul.py",
        ["matmul"],
        normal((1024, 512), (1024, 2048), dtype=HALF),
        product,
        tolerance=1e-2,
    ),
]
