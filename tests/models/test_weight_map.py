"""The map from a checkpoint's tensors to the weights of a graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.weight_map import (
    MappedCheckpoint,
    WeightMap,
    heads_by_group,
    heads_in_turn,
    in_turn,
    rotated_pairs,
)
from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.formats import FORMATS, DType
from corepipe.neuron.numerics.arithmetic import rotate
from corepipe.neuron.numerics.int4 import ALL
from tests.parity import expected, formula

HEADS = HeadLayout(4, 2, 6)
QKV = ("q", "k", "v")


class Tensors:
    """A checkpoint in memory."""

    path = Path("checkpoint")
    fingerprint = "f"

    def __init__(self, **tensors: np.ndarray) -> None:
        self._tensors = {name.replace("__", "."): values for name, values in tensors.items()}

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def file(self, _name: str) -> Path:
        return self.path

    def read(self, name: str, rows: slice = ALL) -> np.ndarray:
        return self._tensors[name][rows].copy()


def test_parts_in_turn() -> None:
    parts = in_turn("both", {"a": 3, "b": 2})
    assert [part.rows.tolist() for part in parts.values()] == [[0, 1, 2], [3, 4]]
    assert {part.count for part in parts.values()} == {5}
    q, k, v = heads_in_turn("qkv", QKV, HEADS).values()
    assert (q.rows[0], k.rows[0], v.rows[0], v.count) == (0, 24, 36, 48)


def test_groups_have_their_queries_their_key_and_their_value_together() -> None:
    stored = np.arange(2 * (2 + 1 + 1) * 6).reshape(2, 4, 6)
    parts = heads_by_group("qkv", QKV, HEADS)
    wanted = {"q": stored[:, :2], "k": stored[:, 2], "v": stored[:, 3]}
    for name, part in parts.items():
        assert part.rows.tolist() == wanted[name].reshape(-1).tolist()
        assert part.count == stored.size


@pytest.mark.parametrize("rotary", [None, 4, 6])
def test_rotated_pairs_become_halves(rotary: int | None) -> None:
    """Rotating neighbours and then sorting is sorting and then rotating halves."""
    width = rotary or HEADS.head_dim
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 24)).astype(np.float32)
    angles = rng.normal(size=(5, width // 2)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    heads = x.reshape(5, 4, 6).copy()
    even, odd = heads[..., 0:width:2].copy(), heads[..., 1:width:2].copy()
    heads[..., 0:width:2] = even * cos[:, None] - odd * sin[:, None]
    heads[..., 1:width:2] = odd * cos[:, None] + even * sin[:, None]
    rows = rotated_pairs(HEADS, rotary)["q_proj"].rows
    got = rotate(x[:, rows], HEADS.head_dim, cos, sin, DType.FP32)
    np.testing.assert_array_equal(got, heads.reshape(5, 24)[:, rows])


def test_what_is_read() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
    tensors = Tensors(
        h__0__fused__weight=matrix.T, h__0__fused__bias=matrix[:, 0], h__0__norm__weight=matrix[0]
    )
    weights = WeightMap(
        "model.", parts=in_turn("fused", {"a": 1, "b": 3}), transposed=("fused",), less_one=("norm",)
    )
    mapped = MappedCheckpoint(tensors, weights)
    np.testing.assert_array_equal(mapped.read("model.h.0.b.weight"), matrix[1:])
    np.testing.assert_array_equal(mapped.read("model.h.0.a.bias"), matrix[:1, 0])
    np.testing.assert_array_equal(mapped.read("model.h.0.norm.weight"), matrix[0] + 1)
    assert mapped.read("model.h.0.b.weight").flags.c_contiguous
    with pytest.raises(UserError, match=r"checkpoint: tensor model\.h\.1\.norm\.weight is missing"):
        mapped.read("model.h.1.norm.weight")


def test_packed_weights_of_another_mapping_are_others() -> None:
    plain, grouped = (
        MappedCheckpoint(Tensors(), WeightMap(parts=parts))
        for parts in (heads_in_turn("qkv", QKV, HEADS), heads_by_group("qkv", QKV, HEADS))
    )
    assert MappedCheckpoint(Tensors(), WeightMap("a.")).fingerprint == Tensors.fingerprint
    assert len({plain.fingerprint, grouped.fingerprint, Tensors.fingerprint}) == 3


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


def test_the_text_of_a_llama_4_that_sees_images(tmp_path: Path) -> None:
    """All of the decoder's names have a prefix, the head's included, and its config is nested."""
    text = dict(expected.load("llama4_text").config)
    nested = {"model_type": "llama4", "text_config": text}
    model = saved(tmp_path, "llama4_text", nested, lambda old: f"language_model.{old}")
    check(model)
    plain = replace(registry.architecture(str(tmp_path)).config, model_type="llama4_text")
    (tmp_path / "config.json").write_text(json.dumps(text), encoding="utf-8")
    assert registry.architecture(str(tmp_path)).config == plain


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("gpt2", {"n_inner": 192}, r"h\.0\.mlp\.c_fc\.weight has shape \[96, 200\], .* asks for \[96, 192\]"),
        ("gpt2", {"n_embd": 192}, r"wte\.weight has shape \[131, 96\], .* asks for \[131, 192\]"),
        (
            "falcon-new",
            {"num_kv_heads": 2},
            r"query_key_value\.weight has shape \[320, 160\], .* \[480, 160\]",
        ),
        ("phi3", {"intermediate_size": 96}, r"gate_up_proj\.weight has shape \[208, 160\], .* \[192, 160\]"),
        (
            "falcon-new",
            {"bias": False},
            r"tensor transformer\.h\.0\.self_attention\.query_key_value\.bias has no",
        ),
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


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("bloom", "apply_residual_connection_post_layernorm"),
        ("cohere2", "use_qk_norm"),
        ("gpt2", "scale_attn_by_inverse_layer_idx"),
        ("gemma", "use_bidirectional_attention"),
    ],
)
def test_variants_are_refused_by_name(tmp_path: Path, name: str, key: str) -> None:
    fields = {**expected.load(name).config, key: True}
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(UserError, match=f"{key} is not supported"):
        registry.architecture(str(tmp_path))
