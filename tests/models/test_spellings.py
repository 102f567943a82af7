"""Equivalent configs: as transformers 5 writes them, and in the older spellings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Attention, Rope
from corepipe.neuron.values import RopeSpec
from tests.parity import expected

LONG = [1.5 + i for i in range(12)]
SHORT = [1.0 + i / 20 for i in range(12)]
FACTORS = {"type": "su", "short_factor": SHORT, "long_factor": LONG}
FEW_FACTORS = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG[1:]}
LINEAR = {"rope_type": "linear", "factor": 8.0}
PATTERN = {"layer_types": None, "sliding_window_pattern": 2}


def graph(folder: Path, name: str, changed: dict[str, Any], positions: int | None = None) -> Graph:
    """Returns the graph of the stored config with some keys changed; those that become None are left out."""
    config = {**expected.load(name).config, **changed}
    left = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(left), encoding="utf-8")
    return registry.architecture(str(folder)).graph(FORMATS["fp32"], positions)


def ropes(built: Graph) -> dict[int, RopeSpec]:
    return {op.layer: op.rope for op in built.ops if isinstance(op, Rope)}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("gpt_neox", {"rope_parameters": None, "rotary_pct": 0.25, "rotary_emb_base": 10000}),
        ("phi", {"rope_parameters": None, "partial_rotary_factor": 0.5, "rope_theta": 10000.0}),
        ("stablelm", {"rope_parameters": None, "partial_rotary_factor": 0.25, "rope_theta": 10000}),
        ("granite", {"rope_parameters": None, "rope_theta": 10000.0}),
        ("gemma3_text", {**PATTERN, "rope_parameters": None, "rope_scaling": LINEAR}),
        (
            "phi3-long",
            {"rope_parameters": None, "rope_scaling": FACTORS, "original_max_position_embeddings": 128},
        ),
        ("smollm3", {"no_rope_layers": None, "layer_types": None}),
        ("cohere2", PATTERN),
        (
            "llama4_text",
            {"layer_types": None, "no_rope_layers": None, "moe_layers": None, "attn_temperature_tuning": 4},
        ),
        ("llama4_text", {"no_rope_layers": [], "layer_types": None, "rms_norm_eps": None}),
        ("gpt_neo", {"attention_types": [[["local"], 1], [["global", "local"], 1]]}),
        ("falcon", {"num_hidden_layers": None, "num_attention_heads": None, "n_layer": 2, "n_head": 4}),
        ("bloom", {"hidden_size": None, "n_embed": 120}),
    ],
)
def test_old_and_new_spellings_are_one_graph(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    assert graph(tmp_path, name, changed).ops == graph(tmp_path, name, {}).ops


def test_each_kind_of_layer_has_its_own_positions(tmp_path: Path) -> None:
    built = graph(tmp_path, "gemma3_text", {})
    windows = {op.layer: op.window for op in built.ops if isinstance(op, Attention)}
    assert windows == {0: 40, 1: None, 2: 40}
    local, full = ropes(built)[0].inv_freq, ropes(built)[1].inv_freq
    exponents = np.arange(0, 24, 2) / 24
    np.testing.assert_allclose(local, 10000.0**-exponents, rtol=1e-6)
    np.testing.assert_allclose(full, 1e6**-exponents / 8, rtol=1e-6)
    assert ropes(built)[2] == ropes(built)[0]


def test_the_asked_length_decides_which_factors_hold(tmp_path: Path) -> None:
    exponents = np.arange(0, 24, 2) / 24
    for positions, factors in ((128, SHORT), (129, LONG), (None, LONG)):
        spec = ropes(graph(tmp_path, "phi3-long", {}, positions))[0]
        np.testing.assert_allclose(spec.inv_freq, 10000.0**-exponents / factors, rtol=1e-6)
        assert spec.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(128)))


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("gpt_neo", {"attention_types": [[["local"], 1]]}, "attention_types names 1 layers of 3"),
        ("gpt_neo", {"attention_types": "local"}, "attention_types must be a list"),
        ("gpt_neo", {"attention_types": [[["far"], 3]]}, r"attention_types must be a list of \[\[global"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must have one entry for each of 4 layers"),
        ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers must have one entry for each of 4 layers"),
        ("llama4_text", {"moe_layers": [4]}, "moe_layers must be a list of layers from 0 to 3"),
        ("llama4_text", {"layer_types": ["sliding_attention"] * 4}, "layer_types .*, chunked_attention"),
        ("llama4_text", {"floor_scale": 0}, "floor_scale must be a number from 1 to"),
        (
            "phi3-long",
            {"rope_parameters": FEW_FACTORS},
            r"rope_parameters\.long_factor must be .* 12 numbers",
        ),
        ("mpt", {"attn_config": {"alibi": False}}, r"attn_config\.alibi must be on"),
        ("mpt", {"attn_config": {"qk_ln": True}}, r"attn_config\.qk_ln is not supported"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights must be true"),
        ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine must be true"),
    ],
)
def test_what_is_wrong_is_named(name: str, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        graph(tmp_path, name, changed)
