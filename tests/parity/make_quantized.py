"""Quantises matrices with compressed-tensors, and writes what it stores and what that stands for.

    python -m tests.parity.make_quantized

Scales are fp32 where it multiplies: in a checkpoint's own bf16 its products are rounded once more.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parents[1] / "data" / "quantized"
ROWS, COLUMNS = 12, 64
CASES = {
    "float-tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "float-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "int-channel": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int-channel-zero": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
    ),
    "pack-group": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}),
    "pack-group-zero": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": False},
    ),
    "pack-ordered": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "actorder": "group"},
    ),
    "pack-channel-3": ("pack-quantized", {"num_bits": 3, "type": "int", "strategy": "channel"}),
}


def parameters(weight: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scale and zero point of each tensor, channel or group, from its extremes."""
    groups = weight
    if args.strategy == "group":
        groups = weight.reshape(ROWS, -1, args.group_size)
    if args.strategy == "tensor":
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    else:
        keep = args.strategy == "channel"
        low, high = groups.amin(-1, keepdim=keep), groups.amax(-1, keepdim=keep)
    return calculate_qparams(low, high, args)


def make(name: str, number: int) -> None:
    kind, written = CASES[name]
    args = QuantizationArgs(**written)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(kind)
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(number))
    state = {"weight": weight}
    state["weight_scale"], zero_point = parameters(weight, args)
    state["weight_scale"] = state["weight_scale"].to(torch.bfloat16).float()
    if not args.symmetric:
        state["weight_zero_point"] = zero_point
    if args.actorder is not None:
        order = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(number))
        state["weight_g_idx"] = (order // args.group_size).to(torch.int32)
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(dict(stored), scheme)["weight"].float()
    tensors = {f"m.{key}": value.contiguous() for key, value in stored.items()}
    tensors["m.weight_scale"] = tensors["m.weight_scale"].to(torch.bfloat16)
    save_file({**tensors, "expected": expected}, HERE / f"{name}.safetensors")
    config = {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
        "ignore": ["lm_head"],
    }
    (HERE / f"{name}.json").write_text(json.dumps(config, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{name}: off by at most {(expected - weight).abs().max():.3f}")


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for number, name in enumerate(CASES):
        make(name, number)


if __name__ == "__main__":
    main()
