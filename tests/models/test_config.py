"""Configurations: both spellings of rope, defaults of each family, and refusals that name file and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.config import ModelConfig
from corepipe.models.rope import RopeConfig

LLAMA: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
}


def configure(folder: Path, **changes: object) -> ModelConfig:
    values = {key: value for key, value in {**LLAMA, **changes}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(values))
    return registry.load(folder).config


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    config = configure(tmp_path)
    assert (config.heads.heads, config.heads.kv_heads, config.heads.head_dim) == (8, 8, 32)
    assert (config.eps, config.rope, config.tied) == (1e-6, RopeConfig(), False)
    assert config.windows == (None,) * 4
    assert (config.bos_id, config.eos_ids) == (None, ())


QWEN2 = {"model_type": "qwen2"}
T5 = {"model_type": "t5", "d_model": 64, "d_ff": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4}
LLAMA3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def test_both_spellings_of_rope_give_the_same(tmp_path: Path) -> None:
    old = configure(tmp_path, rope_theta=500000.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    new = configure(tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3})
    older = configure(tmp_path, rope_theta=500000, rope_scaling={"type": "llama3", **LLAMA3})
    assert old == new == older
    assert old.rope.kind == "llama3"


LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
DEFAULT = {"rope_type": "default"}
THETA = {"rope_theta": 5e5}
GEMMA = {"model_type": "gemma3_text", "head_dim": 32, "rope_scaling": LINEAR}
STRETCHED, PARTIAL = "original_max_position_embeddings", "partial_rotary_factor"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rope_scaling": {"factor": 2.0}}, r"rope_scaling\.rope_type is missing, though factor is given"),
        ({"rope_scaling": {"factor": 1.0}}, r"rope_scaling\.rope_type is missing"),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 2}}, r"rope_parameters\.rope_type is missing"),
        ({"rope_scaling": {"type": None, **LLAMA3}}, r"rope_scaling\.rope_type is missing, though factor"),
        ({"rope_scaling": {"short_factor": [1.0]}}, "rope_type is missing, though short_factor is given"),
        ({"rope_scaling": {"beta_fast": 32}}, "rope_type is missing, though beta_fast is given"),
        ({"rope_scaling": {STRETCHED: 64}}, "rope_type is missing, though original_max"),
        ({"rope_scaling": DEFAULT | {"factor": 2}}, r"rope_scaling\.factor is given, but rope_type"),
        ({"rope_scaling": {"type": "none", "factor": 2}}, r"rope_scaling\.factor is given, but rope_type"),
        ({"rope_scaling": LINEAR | {"type": "yarn"}}, r"rope_scaling\.type is yarn, but rope_type is linear"),
        ({"rope_scaling": LINEAR | {"type": "default"}}, r"\.type is default, but rope_type is linear"),
        ({"rope_scaling": LINEAR | {"type": 3}}, r"rope_scaling\.type must be a string"),
        ({"rope_scaling": LINEAR, "rope_parameters": YARN}, r"rope_parameters\.rope_type is yarn.* linear"),
        (
            {"rope_scaling": LINEAR, "rope_parameters": LINEAR | {"factor": 4.0}},
            r"rope_parameters\.factor is 4\.0, but in rope_scaling it is 2\.0",
        ),
        (
            {"rope_scaling": LINEAR, "rope_parameters": DEFAULT | THETA},
            "default, but in rope_scaling .* linear",
        ),
        (
            {"rope_scaling": YARN | {"beta_fast": 8}, "rope_parameters": YARN},
            "beta_fast is absent, .* it is 8",
        ),
        ({"rope_scaling": LINEAR, "rope_parameters": LINEAR | THETA}, r"rope_theta is 500000\.0, .* absent"),
        ({"rope_theta": 1e4, "rope_parameters": DEFAULT | THETA}, r"500000\.0, but 10000\.0 beside it"),
        (
            {"rope_scaling": YARN | {STRETCHED: 64}, STRETCHED: 32},
            r"rope_scaling\.original_max_position_embeddings is 64, but 32 beside it",
        ),
        (
            {"model_type": "phi", PARTIAL: 0.5, "rope_parameters": {PARTIAL: 0.25}},
            r"rope_parameters\.partial_rotary_factor is 0\.25, but 0\.5 beside it",
        ),
        (
            {**GEMMA, "rope_parameters": {"full_attention": YARN, "sliding_attention": DEFAULT}},
            r"rope_parameters\.full_attention\.rope_type is yarn, but in rope_scaling it is linear",
        ),
        (
            {"model_type": "phi3", "rope_scaling": LINEAR | {"type": "su"}},
            r"longrope, but rope_type is linear",
        ),
    ],
)
def test_rope_settings_of_two_minds_are_refused_by_their_key(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(UserError, match=rf"config\.json: .*{why}"):
        configure(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "as_if"),
    [
        ({"rope_scaling": {}, "rope_parameters": LINEAR}, {"rope_scaling": LINEAR}),
        ({"rope_scaling": LINEAR, "rope_parameters": LINEAR}, {"rope_scaling": LINEAR}),
        (
            {"rope_scaling": LINEAR, "rope_parameters": LINEAR | THETA, **THETA},
            {"rope_scaling": LINEAR, **THETA},
        ),
        ({"rope_scaling": LINEAR | {"type": "linear"}}, {"rope_scaling": LINEAR}),
        ({"rope_scaling": DEFAULT | {"type": "none", "factor": 1.0}}, {}),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": DEFAULT}, {}),
        ({"rope_scaling": YARN, STRETCHED: 512}, {"rope_scaling": YARN | {STRETCHED: 512}}),
        ({"model_type": "smollm3", "rope_parameters": THETA}, {"model_type": "smollm3", **THETA}),
    ],
)
def test_rope_settings_that_agree_are_taken(
    tmp_path: Path, changes: dict[str, object], as_if: dict[str, object]
) -> None:
    """Agreeing settings are accepted; a family's own default does not contradict them."""
    assert configure(tmp_path, **changes).rope == configure(tmp_path, **as_if).rope


def test_yarn_stretches_the_positions(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    config = configure(tmp_path, rope_scaling=scaling)
    assert config.max_positions == 8192
    assert config.rope.spec(32).attention_factor == pytest.approx(1.1386294361)


def test_eos_comes_from_both_files(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 2]}')
    assert configure(tmp_path, eos_token_id=2, bos_token_id=1).eos_ids == (2, 3)


def test_mistral_has_a_window_unless_it_is_null(tmp_path: Path) -> None:
    assert configure(tmp_path, model_type="mistral", sliding_window=None).windows == (None,) * 4
    assert configure(tmp_path, model_type="mistral").windows == (4096,) * 4
    assert configure(tmp_path, model_type="mistral", sliding_window=128).windows == (128,) * 4


def test_qwen2_windows_only_the_upper_layers_and_only_if_asked(tmp_path: Path) -> None:
    options = {"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 3}
    assert configure(tmp_path, **options).windows == (None,) * 4
    assert configure(tmp_path, **options, use_sliding_window=True).windows == (None, None, None, 64)
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    listed = configure(tmp_path, **options, use_sliding_window=True, layer_types=kinds)
    assert listed.windows == (64, None, None, 64)


def test_qwen3_heads_are_128_wide_unless_stated(tmp_path: Path) -> None:
    assert configure(tmp_path, model_type="qwen3").heads.head_dim == 128
    assert configure(tmp_path, model_type="qwen3", head_dim=64).heads.head_dim == 64


def test_biases(tmp_path: Path) -> None:
    def biases(**changes: object) -> tuple[bool, bool, bool]:
        config = configure(tmp_path, **changes)
        return config.qkv_bias, config.out_bias, config.mlp_bias

    assert biases() == (False, False, False)
    assert biases(attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases(model_type="qwen2") == (True, False, False)
    assert biases(model_type="qwen3", attention_bias=True) == (True, True, False)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size must be an integer from 1 to"),
        ({"hidden_size": -5}, "hidden_size must be"),
        ({"hidden_size": 1 << 40}, "hidden_size must be"),
        ({"hidden_size": True}, "hidden_size must be"),
        ({"hidden_size": "64"}, "hidden_size must be"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be"),
        ({"vocab_size": 1e3}, "vocab_size must be"),
        ({"num_attention_heads": 7}, "hidden_size .256. is not a multiple of 7 heads"),
        ({"num_key_value_heads": 3}, "num_attention_heads .8. is not a multiple of 3"),
        ({"head_dim": 33}, "head_dim .33. must be even"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": -1}, "eos_token_id must be a token id"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config\.quant_method is missing"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Evil"}}, "auto_map asks for code"),
        ({"trust_remote_code": True}, "trust_remote_code asks for code"),
        ({"rope_theta": float("inf")}, "rope_theta must be"),
        ({"hidden_act": "x\n\x1b[2J" * 99}, r"hidden_act "),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope' is not supported .known: default, linear"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1}}, "must exceed"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_theta": 0}, "rope_theta must be"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention is an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1"),
        ({"model_type": "mamba"}, "'mamba' is not supported .known: albert, bamba, .* llama, .* qwen3, "),
        (T5, r"t5 is timed, not computed yet \(Attention of layer 0 has .* are albert, .* llama, "),
        ({"model_type": "absent"}, "model_type is missing"),
        ({**QWEN2, "use_sliding_window": True, "layer_types": ["x"] * 4}, "layer_types holds 'x'"),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        configure(tmp_path, **changes)
    assert str(tmp_path / "config.json") in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 100_000, "\xff"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"config\.json"):
        registry.load(tmp_path)


junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())


@pytest.fixture(scope="module")
def some_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an empty folder: links are searched for in all of a directory."""
    return tmp_path_factory.mktemp("model")


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from([*LLAMA, "head_dim", "rope_scaling", "rope_theta", "eos_token_id"]), value=junk)
def test_no_value_gives_anything_but_a_config_or_a_user_error(
    some_folder: Path, key: str, value: object
) -> None:
    try:
        config = configure(some_folder, **{key: value})
    except UserError:
        return
    config.rope.spec(config.heads.head_dim)
