"""Small random encoders as directories: the files that transformers would write, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.serving.encoder_support import bert

WIDTH, LAYERS, HEADS, INNER, POSITIONS = 32, 2, 4, 64, 64


def saved(folder: Path, architecture: str = "BertModel", labels: tuple[str, ...] = ()) -> Path:
    """A BERT of two layers in `folder`, with a head for so many labels if its architecture has one."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = bert().vocab_size
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "vocab_size": vocab,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    if labels:
        config |= {"id2label": {str(at): label for at, label in enumerate(labels)}}
    (folder / "config.json").write_text(json.dumps(config))
    bert().backend.save(str(folder / "tokenizer.json"))
    prefix = "bert." if labels else ""
    random = np.random.default_rng(16)
    tensors = {prefix + name: _random(random, name, shape) for name, shape in _shapes(vocab)}
    if labels:
        tensors["classifier.weight"] = _random(random, "classifier.weight", (len(labels), WIDTH))
        tensors["classifier.bias"] = np.zeros(len(labels), np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def _shapes(vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "embeddings.word_embeddings.weight", (vocab, WIDTH)
    yield "embeddings.position_embeddings.weight", (POSITIONS, WIDTH)
    yield "embeddings.token_type_embeddings.weight", (2, WIDTH)
    yield from _norm("embeddings.LayerNorm")
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            yield from _linear(f"{layer}.attention.self.{name}", WIDTH, WIDTH)
        yield from _linear(f"{layer}.attention.output.dense", WIDTH, WIDTH)
        yield from _norm(f"{layer}.attention.output.LayerNorm")
        yield from _linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        yield from _linear(f"{layer}.output.dense", WIDTH, INNER)
        yield from _norm(f"{layer}.output.LayerNorm")
    yield from _linear("pooler.dense", WIDTH, WIDTH)


def _linear(name: str, rows: int, columns: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (WIDTH,)
    yield f"{name}.bias", (WIDTH,)


def _random(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith("LayerNorm.weight"):
        return np.ones(shape, np.float32)
    return random.normal(0, 0.4, shape).astype(np.float32)
