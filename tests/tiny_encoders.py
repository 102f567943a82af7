"""Encoders of two layers on disk, with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from corepipe.models.registry import architecture
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.values import WeightRole
from tests.engine.encoder_support import bert

POSITIONS = 128


def write_bert(folder: Path, *labels: str, name: str = "BertModel", seed: int = 0, **fields: object) -> Path:
    """Writes a BERT with its tokenizer; with `labels` a classifier of texts, or another class (`name`).

    fields: settings of config.json in place of these.
    """
    tokenizer = bert()
    config = {
        "model_type": "bert",
        "architectures": [name],
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        **({"id2label": dict(enumerate(labels))} if labels else {}),
        **fields,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    model = architecture(str(folder))
    rng = np.random.default_rng(seed)
    weights = {}
    for graph in (model.graph(FORMATS["fp32"]), model.graph(FORMATS["fp32"], None, model.task())):
        for spec in graph.weights():
            drawn = rng.standard_normal(spec.shape).astype(np.float32) / 8
            gain = spec.role is WeightRole.VECTOR and spec.name.endswith("weight")
            weights.setdefault(spec.name, drawn + np.float32(gain))
    save_file(weights, folder / "model.safetensors")
    return folder
