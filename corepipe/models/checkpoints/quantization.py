"""The quantisation in a config.json: the bits of weights, and the shape that shares a scale.

Supported are fp8 as DeepSeek, transformers and vLLM write it, compressed-tensors, which llm-compressor
writes, GPTQ's and AWQ's four bits, and gpt-oss's MXFP4. Settings of activations and KV caches are not read: a
server's flags decide their formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from corepipe.errors import shown
from corepipe.models.fields import Fields

FP8_METHODS = ("fp8", "fbgemm_fp8")
COMPRESSED = "compressed-tensors"
GPTQ, AWQ = "gptq", "awq"
MXFP4 = "mxfp4"
METHODS = (*FP8_METHODS, COMPRESSED, GPTQ, AWQ, MXFP4)
FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision")
"""Formats of compressed-tensors."""
GPTQ_FORMATS = ("gptq", "gptq_v2")
FOUR = 4
"""Bits of GPTQ and AWQ, and of the integers that four-bit kernels take without change."""
STRATEGIES = ("tensor", "channel", "group", "block")
MAX_GROUPS = 64
"""The most groups of layers that are quantised alike; a model has one or two."""
MAX_SIZE = 1 << 20
"""The largest size of a group or block."""


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """The bits of weights, and the strategy of scales: one a tensor, a channel (row), a group of a row, or a
    block.

    size: rows and columns that share a scale, 0 for all of them.
    """

    kind: str
    bits: int
    strategy: str
    size: tuple[int, int]
    symmetric: bool = True
    ordered: bool = False

    def scale_shapes(self, rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes that scales of a matrix may have."""
        high, wide = self.size
        shape = (-(-rows // high) if high else 1, -(-columns // wide) if wide else 1)
        if self.strategy == "channel":
            return (shape, shape[:1])
        return ((), (1,), shape) if prod(shape) == 1 else (shape,)

    def __str__(self) -> str:
        high, wide = self.size
        parts = {
            "tensor": "with a scale a tensor",
            "channel": "with a scale a channel",
            "group": f"in groups of {wide}",
            "block": f"in blocks of {high}x{wide}",
        }
        name = f"fp{self.bits}" if self.kind == "float" else f"int{self.bits}"
        zero_points = "" if self.symmetric else " with zero points"
        return f"{name} {parts[self.strategy]}{zero_points}"


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantisation of a model: each quantised weight has one of `schemes`; MXFP4 has none.

    zeros_less_one: GPTQ's zero points are kept less one.
    """

    fields: Fields
    method: str
    schemes: tuple[WeightScheme, ...]
    zeros_less_one: bool = False


def read_quantization(fields: Fields) -> Quantization | None:
    """Reads the quantisation of a configuration; None where it has none.

    Raises UserError for methods and variants that are not supported.
    """
    section = fields.section("quantization_config") or fields.section("compression_config")
    if section is None:
        return None
    method = section.text("quant_method", COMPRESSED if section.has("config_groups") else None)
    if method not in METHODS:
        raise section.error(
            "quant_method",
            f"{shown(method, 40)} is not supported (known: {', '.join(METHODS)}): use the unquantised "
            "weights, or a GGUF file",
        )
    if method in (GPTQ, AWQ):
        less_one = method == GPTQ and section.require("checkpoint_format", GPTQ_FORMATS, "gptq") == "gptq"
        return Quantization(fields, method, (_four_bits(section, method),), less_one)
    if method == MXFP4:
        return Quantization(fields, method, ())
    schemes = _compressed(section) if method == COMPRESSED else (_fp8(section, method),)
    return Quantization(fields, method, schemes)


def _four_bits(section: Fields, method: str) -> WeightScheme:
    """Reads GPTQ's and AWQ's scheme, in groups of inputs or with a scale an output (-1)."""
    bits = section.integer("w_bit" if section.has("w_bit") else "bits", 8)
    if bits != FOUR:
        raise section.error("bits", f"{bits} of {method} are not supported (known: {FOUR})")
    if method == AWQ:
        section.require("version", ("gemm", "GEMM"), "gemm")
    if section.has("desc_act") and section.flag("desc_act", default=False):
        raise section.error(
            "desc_act",
            "is not supported: groups in the order of activations; use weights that were quantised without, "
            "or a GGUF file",
        )
    if section.values.get("dynamic"):
        raise section.error("dynamic", "is not supported: modules with bits and groups of their own")
    key = "q_group_size" if section.has("q_group_size") else "group_size"
    group = 0 if section.values.get(key) == -1 else section.integer(key, MAX_SIZE)
    symmetric = method == GPTQ and section.flag("sym", default=True)
    return WeightScheme("int", FOUR, "group" if group else "channel", (1, group), symmetric)


def _fp8(section: Fields, method: str) -> WeightScheme:
    """Reads fp8's scheme: blocks of the config's size, else a scale a tensor, or a channel in FBGEMM."""
    section.require("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    if section.has("weight_block_size"):
        return WeightScheme("float", 8, "block", _block(section, "weight_block_size"))
    if method == "fp8":
        return WeightScheme("float", 8, "tensor", (0, 0))
    return WeightScheme("float", 8, "channel", (1, 0))


def _block(section: Fields, key: str) -> tuple[int, int]:
    value = section.values.get(key)
    sound = isinstance(value, list) and all(type(v) is int and 1 <= v <= MAX_SIZE for v in value)
    if not (isinstance(value, list) and sound and len(value) == 2):
        raise section.error(key, f"must be two integers from 1 to {MAX_SIZE}, not {shown(value, 60)}")
    return value[0], value[1]


def _compressed(section: Fields) -> tuple[WeightScheme, ...]:
    section.require("quantization_status", ("compressed",), "compressed")
    _require_format(section)
    sparsity = section.section("sparsity_config")
    if sparsity is not None:
        sparsity.require("format", ("dense",), "dense")
    if section.values.get("transform_config"):
        raise section.error("transform_config", "is not supported: its rotations would be missing")
    groups = section.section("config_groups")
    if groups is None or not 1 <= len(groups.values) <= MAX_GROUPS:
        raise section.error("config_groups", f"must be an object of 1 to {MAX_GROUPS} groups")
    found = (groups.section(name) for name in groups.values)
    return tuple(dict.fromkeys(scheme for group in found if group for scheme in _group(group)))


def _group(group: Fields) -> tuple[WeightScheme, ...]:
    """Reads the weights' scheme of a group; none where it quantises activations alone."""
    weights = group.section("weights")
    if weights is None:
        return ()
    if group.has("format"):
        _require_format(group)
    kind = weights.require("type", ("int", "float"), "int")
    bits = weights.integer("num_bits", 8, default=8)
    if kind == "float" and bits != 8:
        raise weights.error("num_bits", f"{bits} of type float is not supported (known: 8)")
    strategy = weights.require("strategy", STRATEGIES, "group" if weights.has("group_size") else "tensor")
    ordered = weights.has("actorder") and weights.values["actorder"] not in ("weight", "static", False)
    symmetric = weights.flag("symmetric", default=True)
    size = _size(weights, strategy)
    return (WeightScheme(kind, bits, strategy, size, symmetric, ordered),)


def _require_format(section: Fields) -> None:
    section.require("format", FORMATS, "naive-quantized")


def _size(weights: Fields, strategy: str) -> tuple[int, int]:
    if strategy == "group":
        return 1, weights.integer("group_size", MAX_SIZE)
    if strategy == "block":
        return _block(weights, "block_structure")
    return (1, 0) if strategy == "channel" else (0, 0)
