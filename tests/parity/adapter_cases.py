"""Adapters that PEFT has read, and the logits that it computed with them: kept in tests/data/adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from corepipe.models import registry
from corepipe.models.adapters.peft import read_adapter
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from tests.computed import BLOCK, POSITIONS, executor, two_threads
from tests.parity import expected
from tests.peft_adapters import Peft, random_peft
from tests.support import chunk_inputs, logits

DATA = Path(__file__).resolve().parents[1] / "data" / "adapters"
BOUND = 1e-5
"""Largest difference of a logit in fp32 from PEFT's, as a share of the largest."""
TOKENS = 40
SOME = r".*\.(query_key_value|dense_h_to_4h)"
OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"0.self_attn.v_proj": 7, "down_proj": 1}},
    "gpt2": {"fan_in_fan_out": True},
    "phi3": {"use_rslora": True},
    "gpt_neox": {"target_modules": SOME},
    "bloom": {"target_modules": SOME},
}
"""Keys of each adapter's configuration, beside the usual ones, by the model."""


def adapter_for(model: registry.Model, name: str) -> Peft:
    """Returns the adapter of that model."""
    peft = random_peft(model, model.graph(FORMATS["fp32"]), 4)
    config = {**peft.config, "target_modules": [*peft.modules], **OPTIONS[name]}
    modules = dict(peft.modules)
    for module, (a, b) in peft.modules.items():
        if config["target_modules"] == SOME and not module.endswith(("query_key_value", "dense_h_to_4h")):
            del modules[module]
        elif module.endswith(tuple(config.get("rank_pattern", ()))):
            modules[module] = a[:2].copy(), b[:, :2].copy()
    return Peft(config, modules)


def tokens(name: str) -> list[int]:
    return expected.load(name).prompt[:TOKENS]


def adapted_logits(model: registry.Model, peft: Path, prompt: Sequence[int]) -> np.ndarray:
    """Returns the logits of a prompt in fp32, with an adapter of PEFT's files."""
    graph = model.graph(FORMATS["fp32"], POSITIONS)
    inputs = chunk_inputs(prompt, 0, blocks=range(POSITIONS // BLOCK))
    with two_threads() as pool:
        native = executor(model, graph, Placement(), pool)
        native.adapters.load(0, read_adapter(peft, model, graph))
        return logits(native, replace(inputs, adapters=np.zeros(len(prompt), np.int32)))
