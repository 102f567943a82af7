"""The map from a checkpoint's tensors to the weights of a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.weight_map import MappedCheckpoint, WeightMap, heads_by_group, heads_in_turn
from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.formats import FORMATS
from tests.parity import expected, formula

HEADS = HeadLayout(4, 2, 6)
QKV = ("q", "k", "v")


def test_packed_weights_of_another_mapping_are_others() -> None:
    stored: Any = SimpleNamespace(fingerprint="f", names=list)
    in_turn, by_group, prefixed = (
        MappedCheckpoint(stored, WeightMap(prefix, parts=parts)).fingerprint
        for prefix, parts in (
            ("", heads_in_turn("qkv", QKV, HEADS)),
            ("", heads_by_group("qkv", QKV, HEADS)),
            ("a.", {}),
        )
    )
    assert len({in_turn, by_group, stored.fingerprint}) == 3
    assert prefixed == stored.fingerprint


def saved(
    folder: Path, name: str, config: dict[str, Any] | None = None, rename: Callable[[str], str | None] = str
) -> registry.Model:
    """Saves the model of that name with some keys of its config changed, and tensors renamed, or left out."""
    model = expected.load(name)
    model.config.update(config or {})
    model.write(folder)
    shapes = {new: shape for old, shape in model.shapes.items() if (new := rename(old)) is not None}
    formula.write_safetensors(folder / "model.safetensors", shapes)
    return registry.load(folder)


def check(model: registry.Model) -> None:
    model.check(model.graph(FORMATS["bf16"]))


@pytest.mark.parametrize(
    ("name", "prefix", "other"),
    [
        ("llama", "model.", ""),
        ("gpt2", "transformer.", ""),
        ("gpt_neox", "gpt_neox.", ""),
        ("opt", "model.decoder.", "decoder."),
        ("gemma3", "language_model.model.", "model.language_model."),
        ("gemma3", "language_model.model.", "model."),
        ("llama4_text", "model.", "language_model.model."),
        ("llama4_text", "model.", ""),
    ],
)
def test_prefixes_may_differ(tmp_path: Path, name: str, prefix: str, other: str) -> None:
    model = saved(tmp_path, name, rename=lambda old: old.replace(prefix, other))
    check(model)
    assert len(model.checkpoint.read(next(model.graph(FORMATS["bf16"]).weights()).name))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("gpt2", {"n_inner": 192}, r"h\.0\.mlp\.c_fc\.weight has shape \[96, 200\], .* asks for \[96, 192\]"),
        ("gpt2", {"n_embd": 192}, r"wte\.weight has shape \[131, 96\], .* asks for \[131, 192\]"),
        ("falcon-new", {"num_kv_heads": 2}, r"query_key_value\.weight has shape \[320, .* \[480, 160\]"),
        ("phi3", {"intermediate_size": 96}, r"gate_up_proj\.weight has shape \[208, 160\], .* \[192, 160\]"),
        ("falcon-new", {"bias": False}, r"tensor transformer\.h\.0\..*\.query_key_value\.bias has no place"),
        (
            "llama",
            {"attention_bias": False},
            r"tensor model\.layers\.0\.self_attn\.q_proj\.bias has no place",
        ),
        ("olmo", {"num_hidden_layers": 1}, r"tensor model\.layers\.1\..* has no place in the model"),
        ("olmo", {"num_hidden_layers": 3}, r"tensor model\.layers\.2\..* is missing"),
        ("gpt_bigcode", {"multi_query": False}, r"c_attn\.weight has shape \[144, 96\], .* \[288, 96\]"),
    ],
)
def test_a_config_that_contradicts_its_weights(
    tmp_path: Path, name: str, config: dict[str, Any], message: str
) -> None:
    model = saved(tmp_path, name, config)
    with pytest.raises(UserError, match=message):
        check(model)


@pytest.mark.parametrize("further", [0, 1])
def test_layers_of_training_are_passed_over_where_a_config_has_them(tmp_path: Path, further: int) -> None:
    """DeepSeek-V3's checkpoints have them behind the model's own layers."""
    model = saved(tmp_path, "deepseek_v3", {"num_nextn_predict_layers": further})
    norm = "model.layers.{}.input_layernorm.weight"
    shapes = dict(expected.load("deepseek_v3").shapes)
    formula.write_safetensors(
        tmp_path / "model.safetensors", {**shapes, norm.format(3): shapes[norm.format(0)]}
    )
    if further:
        check(model)
        return
    with pytest.raises(UserError, match=r"model.layers.3.input_layernorm.weight has no place in the model"):
        check(model)
