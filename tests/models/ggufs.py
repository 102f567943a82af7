"""Writes GGUF files as llama.cpp's converter does, from a tiny Hugging Face checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from corepipe.models import registry
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES
from corepipe.models.registry import Model


def gguf_name(name: str, arch: str = "llama") -> str:
    """Returns the name that llama.cpp's converter gives a tensor of a Hugging Face checkpoint."""
    family = GGUF_FAMILIES[arch]
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith(family.layers):
        return f"{ {hf: ours for ours, hf in family.top.items()}[stem] }.{suffix}"
    layer, rest = stem.removeprefix(family.layers).split(".", 1)
    return f"blk.{layer}.{ {hf: ours for ours, hf in family.layer.items()}[rest] }.{suffix}"


def interleave_halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Permutes q and k as the converter does for architecture llama."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def convert(source: Path, target: Path, encoding: Type = Type.F32, arch: str = "llama") -> None:
    """Writes a file: matrices whose rows fit the encoding's blocks are quantised, the rest stays F32."""
    model = registry.load(source)
    writer = gguf.GGUFWriter(target, arch)
    add_config(writer, model, arch)
    add_tokenizer(writer, model)
    for name in sorted(model.checkpoint.names()):
        values = model.checkpoint.read(name)
        if arch == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = model.config.heads
            values = interleave_halves(values, heads.heads if "q_proj" in name else heads.kv_heads)
        add_tensor(writer, gguf_name(name, arch), values, encoding)
    close(writer)


def add_config(writer: gguf.GGUFWriter, model: Model, arch: str) -> None:
    config = model.config
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.heads.heads)
    writer.add_head_count_kv(config.heads.kv_heads)
    writer.add_key_length(config.heads.head_dim)
    writer.add_value_length(config.heads.head_dim)
    writer.add_rope_dimension_count(config.heads.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_vocab_size(config.vocab_size)
    if config.rope.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(config.rope.kind))
        writer.add_rope_scaling_factor(config.rope.factor)
        writer.add_rope_scaling_orig_ctx_len(config.rope.original_max_positions)
    if config.rope.kind == "llama3":
        plain = config.rope.theta ** -(np.arange(0, config.heads.head_dim, 2) / config.heads.head_dim)
        scaled = np.array(config.rope.spec(config.heads.head_dim).inv_freq)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    if arch == "llama" and config.windows[0] is not None:
        writer.add_sliding_window(config.windows[0])


def add_tokenizer(writer: gguf.GGUFWriter, model: Model, pre: str = "smollm") -> None:
    backend = model.tokenizer().backend
    vocab = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    added = backend.get_added_tokens_decoder()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([3 if i in added else 1 for _, i in vocab])
    writer.add_token_merges(merges_of(backend))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.add_add_bos_token(value=False)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}")


def merges_of(backend: object) -> list[str]:
    return [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, encoding: Type) -> None:
    block = gguf.GGML_QUANT_SIZES[encoding][0]
    if values.ndim == 1 or values.shape[-1] % block:
        encoding = Type.F32
    if encoding == Type.F16:
        writer.add_tensor(name, values.astype(np.float16))
    elif encoding == Type.F32:
        writer.add_tensor(name, np.ascontiguousarray(values))
    else:
        writer.add_tensor(name, gguf.quantize(values, encoding), raw_dtype=encoding)


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
