"""DeepSeek's checkpoints and configs as their makers publish them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from corepipe.errors import UserError
from corepipe.models import published, registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Experts, LatentAttention, Rope
from tests.models.test_families import written
from tests.parity import expected

YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
"""`rope_scaling` of DeepSeek-V2-Lite's config.json."""


def test_long_contexts_sharpen_scores(tmp_path: Path) -> None:
    """The factor is the square of 0.1 mscale_all_dim ln(factor) + 1 (DeepSeek-V2's modeling code); that of
    cos and sin is 1 where both scales are the same."""
    config = published.config("deepseek-v2-lite") | {"rope_scaling": YARN, "rope_theta": 10000}
    graph = registry.architecture(written(tmp_path, config)).graph(FORMATS["bf16"])
    (attention, *_) = (op for op in graph.ops if isinstance(op, LatentAttention))
    assert attention.scale == pytest.approx((0.1 * 0.707 * math.log(40) + 1) ** 2 / math.sqrt(192))
    (rope, *_) = (op for op in graph.ops if isinstance(op, Rope))
    assert rope.rope.attention_factor == 1
    assert len(rope.rope.inv_freq) == 32
    assert (rope.rope.inv_freq[0], graph.max_positions) == (1, 163840)
    assert rope.rope.inv_freq[-1] == pytest.approx(10000 ** (-62 / 64) / 40)


def test_groups_and_factors_of_v2(tmp_path: Path) -> None:
    routing = {
        "topk_method": "group_limited_greedy",
        "n_group": 8,
        "topk_group": 3,
        "routed_scaling_factor": 16.0,
        "scoring_func": "softmax",
        "norm_topk_prob": False,
    }
    config = published.config("deepseek-v2") | routing
    graph = registry.architecture(written(tmp_path, config)).graph(FORMATS["bf16"])
    (experts, *_) = (op for op in graph.ops if isinstance(op, Experts))
    assert (experts.groups, experts.factor, experts.correction) == ((8, 3), 16, None)


@pytest.mark.parametrize("further", [0, 1])
def test_layers_of_training_are_passed_over_where_a_config_has_them(tmp_path: Path, further: int) -> None:
    small = expected.load("deepseek_v3")
    path = small.write(tmp_path)
    tensors = load_file(path / "model.safetensors")
    norm = "model.layers.{}.input_layernorm.weight"
    save_file({**tensors, norm.format(3): np.ones(96, np.float32)}, path / "model.safetensors")
    config = {**small.config, "num_nextn_predict_layers": further}
    written(path, config)
    model = registry.load(path)
    graph = model.graph(FORMATS["fp32"])
    assert graph.num_layers == 3
    if further:
        model.check(graph)
        return
    with pytest.raises(UserError, match=r"model.layers.3.input_layernorm.weight has no place in the model"):
        model.check(graph)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    path = expected.load("deepseek_v2").write(tmp_path)
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    save_file({**tensors, name: tensors[name][:-1].copy()}, path / "model.safetensors")
    model = registry.load(path)
    with pytest.raises(
        UserError, match=r"kv_b_proj.weight has shape \[131, 40\], but .* asks for \[132, 40\]"
    ):
        model.check(model.graph(FORMATS["fp32"]))
