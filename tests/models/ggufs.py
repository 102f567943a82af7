"""Writes GGUF files as llama.cpp's converter does, from the directory of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

from corepipe.models import registry
from corepipe.models.registry import Model
from tests.models.gguf_conversion import ARCHITECTURES, Config, factors, metadata, take_mxfp4, tensors
from tests.parity.families import TINY


def write(
    folder: Path,
    target: Path,
    encoding: Type = Type.F32,
    latents: bool = True,
    keys: Config | None = None,
    instead: Mapping[str, np.ndarray | None] | None = None,
    speaks: Model | None = None,
    **split: Any,
) -> Path:
    """Writes matrices in an encoding, where rows fit it; with a tokenizer, or none.

    latents: DeepSeek's keys and values are separate, as since 2025, or in one tensor. keys, instead:
    replacements of metadata and tensors; None removes one. split: options of the library's writer.
    """
    config = read_config(folder)
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(target, arch, **split)
    add_metadata(writer, {**metadata(arch, config, latents), **(keys or {})})
    if speaks is not None:
        add_tokenizer(writer, speaks)
    else:
        writer.add_bos_token_id(config["bos_token_id"])
        writer.add_eos_token_id(config["eos_token_id"])
    for name, values in factors(config):
        writer.add_tensor(name, values)
    original = load_file(folder / "model.safetensors")
    for name, blocks in take_mxfp4(original):
        writer.add_tensor(name, blocks, raw_dtype=Type.MXFP4)
    original = {name: values.astype(np.float32) for name, values in original.items()}
    made = {**dict(tensors(arch, config, original, latents)), **(instead or {})}
    for name, values in made.items():
        if values is None:
            continue
        fits = name.endswith(".weight") and not name.endswith(("_norm.weight", "ssm_conv1d.weight"))
        add_tensor(writer, name, np.ascontiguousarray(values), encoding if fits else Type.F32)
    close(writer)
    return target


def convert(source: Path, target: Path, encoding: Type = Type.F32, **split: Any) -> None:
    """Writes a file of a tiny model with its tokenizer."""
    write(source, target, encoding, speaks=registry.load(source), **split)


def begun(path: Path) -> gguf.GGUFWriter:
    """Returns the writer of a file with the metadata of the tiny llama2, and no tokenizer yet."""
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer, metadata("llama", read_config(TINY / "llama2"), latents=True))
    return writer


def read_config(folder: Path) -> Config:
    config: Config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def add_metadata(writer: gguf.GGUFWriter, values: Config) -> None:
    """Adds keys of the writer's architecture, of the type of each value; None adds nothing."""
    for name, value in values.items():
        key = f"{writer.arch}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_string(key, str(value))


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
