"""Graphs of the families: compilation, contents, and configs that are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.models import published, registry
from corepipe.models.families import FAMILIES
from corepipe.models.registry import computed_families
from corepipe.neuron.axes import AxisKind
from corepipe.neuron.compile.compiler import compile_graph, kv_bytes_per_token, state_bytes
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import (
    AllReduce,
    Attention,
    ElementwiseActivation,
    Function,
    LatentAttention,
)
from corepipe.neuron.values import SOURCE, TOKENS, WANTED, OutputKind
from tests.models.published_counts import COUNTS

ENCODERS = {
    *("albert", "bert", "camembert", "deit", "distilbert", "electra"),
    *("modernbert", "mpnet", "roberta", "vit", "xlm-roberta"),
}
NORMS_ACROSS_HEADS = {
    "bamba",
    "granitemoehybrid",
    "mamba2",
    "olmo2",
    "olmoe",
}  # published Mamba-2s have one group of norms
CONVOLUTIONS = {"resnet", "unet", "vgg", "yolov4"}
UNCUT = NORMS_ACROSS_HEADS | CONVOLUTIONS

ONE_OF_EACH = {str(published.config(name)["model_type"]): name for name in reversed(COUNTS)}
"""The smallest example of each family, with few exceptions, and the largest Llama."""

COMPUTED = set(computed_families())

BIG = ("llama-3.1-405b", "bloom-176b", "falcon-180b", "deepseek-v3", "qwen3-235b-a22b", "mixtral-8x22b")


@cache
def graph(name: str) -> Graph:
    return registry.architecture(name).graph(FORMATS["bf16"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in {*ONE_OF_EACH.values(), *BIG} else pytest.mark.slow)
        for name in COUNTS
    ],
)
def test_every_published_model_compiles(name: str) -> None:
    """The model compiles on one core and in stages; the stages hold every weight of the one core."""
    whole = graph(name)
    (one,) = compile_graph(whole, Placement())
    stages = compile_graph(whole, Placement(pipeline=2))
    assert [len(stage.layers) > 0 for stage in stages] == [True, True]
    assert set(one.shards) == {shard for stage in stages for shard in stage.shards}


@pytest.mark.parametrize(
    "name", [*(name for family, name in ONE_OF_EACH.items() if family not in UNCUT), *BIG]
)
def test_tensor_parallelism_divides_the_weights(name: str) -> None:
    whole = graph(name)
    degree = max(d for d in (2, 4, 8) if d <= whole.attention_heads)
    ranks = compile_graph(whole, Placement(tensor=degree))
    assert len({rank.ops[-1].out.width for rank in ranks}) == 1
    for spec in whole.weights():
        parts = [prod(rank.shards[spec.name].shape) for rank in ranks if spec.name in rank.shards]
        kinds_of_axes = {axis.kind for axis in spec.axes}
        if AxisKind.KV_HEADS not in kinds_of_axes and any(axis.is_cut for axis in spec.axes):
            assert sum(parts) >= prod(spec.shape)
            assert max(parts) < prod(spec.shape)


def test_every_family_has_a_published_model() -> None:
    assert set(FAMILIES) - set(ONE_OF_EACH) == {
        *("gemma3", "llama4"),  # multimodal models; their text models are listed
        *("cohere2", "glm4", "granitemoe", "olmo3"),  # without a published shape here so far
    }


@pytest.mark.parametrize(("family", "name"), ONE_OF_EACH.items())
def test_encoders_see_both_ways_and_keep_nothing(family: str, name: str) -> None:
    built = graph(name)
    attentions = [op for op in built.ops if isinstance(op, Attention) and op.q.rows != SOURCE]
    assert built.causal is (family not in ENCODERS | CONVOLUTIONS)
    assert {op.causal for op in attentions} <= {built.causal}
    (program,) = compile_graph(built, Placement())
    assert (kv_bytes_per_token(program) + state_bytes(program) > 0) is built.causal


def test_a_pooler_gives_one_row_a_sequence() -> None:
    last = graph("bert-base").ops[-1]
    assert isinstance(last, ElementwiseActivation)
    assert (last.function, last.out.rows, last.out.width) == (Function.TANH, WANTED, 768)
    outputs = {
        name: [(o.kind, o.value.rows) for o in graph(name).outputs]
        for name in ("bert-base", "distilbert-base", "vit-base")
    }
    every, pooled = (OutputKind.HIDDEN, TOKENS), (OutputKind.VECTOR, WANTED)
    assert outputs == {"bert-base": [every, pooled], "distilbert-base": [every], "vit-base": [pooled]}


@pytest.mark.parametrize(
    ("name", "per_layer"),
    [
        *(("gpt2", 2), ("opt-6.7b", 2), ("bert-base", 2), ("llama-3-8b", 2)),
        *(("gpt-j-6b", 1), ("falcon-7b", 1), ("falcon-40b", 1), ("phi-2", 1), ("command-r-35b", 1)),
        *(("mixtral-8x7b", 2), ("deepseek-v3", 2), ("qwen1.5-moe-a2.7b", 2), ("llama-4-maverick", 2)),
    ],
)
def test_blocks_side_by_side_share_an_all_reduce(name: str, per_layer: int) -> None:
    built = graph(name)
    rank = compile_graph(built, Placement(tensor=4))[3]
    reduces = [op for op in rank.ops if isinstance(op, AllReduce)]
    assert len(reduces) == per_layer * built.num_layers
    assert {op.out.axis.kind for op in reduces} == {AxisKind.HIDDEN}


@pytest.mark.parametrize("tensor", [1, 8])
def test_deepseek_keeps_one_latent_a_token_on_every_rank(tensor: int) -> None:
    rank = compile_graph(graph("deepseek-v3"), Placement(tensor=tensor))[-1]
    assert kv_bytes_per_token(rank) == 61 * (512 + 64) * 2
    (attention, *_) = (op for op in rank.ops if isinstance(op, LatentAttention))
    heads = 128 // tensor
    assert (attention.heads.heads, attention.q.width, attention.out.width) == (
        heads,
        heads * 192,
        heads * 128,
    )
    assert rank.shards[attention.key_up.name].shape == (heads * 128, 512)


def test_latents_that_are_too_wide_are_timed_alone(tmp_path: Path) -> None:
    wide = registry.architecture(
        written(tmp_path, published.config("deepseek-v2-lite") | {"kv_lora_rank": 520})
    )
    assert wide.graph(FORMATS["bf16"]).refusal() == (
        "LatentAttention of layer 0 keeps 584 elements of a token; the kernels take 576"
    )


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_sinks_are_cut_with_the_heads(tensor: int) -> None:
    ranks = compile_graph(graph("gpt-oss-20b"), Placement(tensor=tensor))
    heads = 64 // tensor
    for rank in ranks:
        (attention, *_) = (op for op in rank.ops if isinstance(op, Attention))
        assert rank.shards[attention.sinks.name].axes[1].ranges == ((rank.rank * heads, heads),)
        assert attention.heads.heads == heads


REQUIRED = {
    "bert": "hidden_size",
    "bloom": "n_layer",
    "deepseek_v3": "kv_lora_rank",
    "dbrx": "ffn_config",
    "distilbert": "dim",
    "falcon": "hidden_size",
    "gpt2": "n_embd",
    "gpt_neox": "num_attention_heads",
    "llama4_text": "num_local_experts",
    "mixtral": "num_local_experts",
    "mpt": "d_model",
    "opt": "num_hidden_layers",
    "phi3": "intermediate_size",
    "qwen3_moe": "moe_intermediate_size",
    "t5": "d_model",
    "vit": "hidden_size",
}


def written(folder: Path, values: Mapping[str, object]) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    return str(file)


@pytest.mark.parametrize(("family", "key"), REQUIRED.items())
def test_a_missing_key_is_named_as_the_config_spells_it(tmp_path: Path, family: str, key: str) -> None:
    values = published.config(ONE_OF_EACH[family])
    del values[key]
    with pytest.raises(UserError, match=rf"config\.json: {key} is missing"):
        registry.architecture(written(tmp_path, values))


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("albert-base", {"num_hidden_groups": 2}, "num_hidden_groups other than 1 is not supported"),
        ("bert-base", {"head": "qa"}, "head 'qa' is not supported"),
        ("bloom-560m", {"apply_residual_connection_post_layernorm": True}, "post_layernorm is not supported"),
        ("command-r", {"model_type": "cohere2", "use_qk_norm": True}, "use_qk_norm is not supported"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx is not supported"),
        ("gemma-2b", {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok must be an integer from 1 to 8"),
        ("modernbert-base", {"classifier_pooling": "max"}, "classifier_pooling 'max' is not supported"),
        ("deepseek-v2", {"norm_topk_prob": True}, "norm_topk_prob is not supported"),
        (
            "deepseek-v2",
            {"topk_method": "noaux_tc"},
            "'noaux_tc' is not supported .known: greedy",
        ),
        ("deepseek-v2", {"mlp_bias": True}, "mlp_bias is not supported"),
        ("deepseek-v2", {"qk_rope_head_dim": 63}, "qk_rope_head_dim .63. must be even"),
        ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("deepseek-v3", {"n_group": 7}, "n_group .7. must make equal groups of 256 experts"),
        ("deepseek-v3", {"n_group": 256}, "n_group .256. must make equal groups of 256 experts, 2 or more"),
        ("deepseek-v3", {"n_group": 64, "topk_group": 1}, "topk_group .1 of 4 experts. has fewer than the 8"),
        ("deepseek-v3", {"topk_group": 9}, "topk_group must be an integer from 1 to 8"),
        ("deepseek-v3", {"routed_scaling_factor": 0}, "routed_scaling_factor must be a number from"),
        ("modernbert-base", {"rope_scaling": {"factor": 2}}, "rope_scaling is not supported"),
        ("roberta-base", {"max_position_embeddings": 2}, "max_position_embeddings must be more than 2"),
        ("stablelm-2-1.6b", {"qk_layernorm": "yes"}, "qk_layernorm must be true or false"),
        ("t5-small", {"feed_forward_proj": "tanh"}, "'tanh' is not supported"),
        ("vit-base", {"patch_size": 15}, "image_size .224. is not a multiple of patch_size .15."),
    ],
)
def test_what_a_family_does_not_have_is_refused(
    tmp_path: Path, name: str, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        registry.architecture(written(tmp_path, {**published.config(name), **changes}))


def test_a_family_is_computed_or_it_is_not() -> None:
    """All published models of a family are computed, if the first is; decoders, encoders and mixtures."""
    for name in published.names():
        family = published.config(name)["model_type"]
        assert (graph(name).refusal() is None) is (family in COMPUTED), name
    assert "t5" not in COMPUTED
    assert {"llama", "gpt2", "gemma2", "dbrx", "deepseek_v3", "granitemoehybrid", "llama4"} <= COMPUTED
    assert ENCODERS <= COMPUTED


@pytest.mark.parametrize("name", [name for family, name in ONE_OF_EACH.items() if family not in COMPUTED])
def test_what_is_timed_only_is_not_loaded(tmp_path: Path, name: str) -> None:
    source = written(tmp_path, published.config(name))
    assert registry.architecture(source).parameters == registry.architecture(name).parameters
    with pytest.raises(UserError, match=r"timed, not computed yet \(.* of layer .*\): it can be simulated"):
        registry.load(tmp_path)


def test_the_text_of_models_that_see_images(tmp_path: Path) -> None:
    """Configs of multimodal models nest the decoder's, and omit transformers' defaults."""
    text = {k: published.config("gemma-3-4b")[k] for k in ("hidden_size", "intermediate_size")}
    text |= {"num_hidden_layers": 34, "sliding_window": 1024}
    gemma = registry.architecture(written(tmp_path, {"model_type": "gemma3", "text_config": text}))
    assert gemma.parameters == registry.architecture("gemma-3-4b").parameters
    nested = {"model_type": "llama4", "text_config": published.config("llama-4-scout")}
    llama = registry.architecture(written(tmp_path, nested))
    assert llama.parameters == registry.architecture("llama-4-scout").parameters


def test_an_architecture_of_a_config_needs_nothing_else(tmp_path: Path) -> None:
    model = registry.architecture(
        written(tmp_path, {**published.config("llama-2-7b"), "quantization_config": {}})
    )
    assert (model.name, model.max_positions, model.parameters) == (tmp_path.name, 4096, 6738415616)
    assert registry.architecture(str(tmp_path)).parameters == model.parameters
    with pytest.raises(UserError, match="no such file"):
        registry.architecture(str(tmp_path / "gone" / "config.json"))
