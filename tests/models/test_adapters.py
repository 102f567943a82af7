"""PEFT directories: whose rows they change, and all that is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.adapters.peft import bytes_needed, read_adapter
from corepipe.models.adapters.peft_config import read_config
from corepipe.neuron.formats import FORMATS, DType
from corepipe.neuron.graph import Graph
from tests.peft_adapters import PREFIX, Peft, config, pair

Q, GATE = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.gate_proj"


@pytest.fixture(scope="module")
def model(folder: Callable[[str], Path]) -> registry.Model:
    return registry.load(folder("llama"))


@pytest.fixture(scope="module")
def graph(model: registry.Model) -> Graph:
    return model.graph(FORMATS["fp32"])


@pytest.fixture
def peft(graph: Graph) -> Peft:
    shapes = {spec.name: spec.shape for spec in graph.weights()}
    rng = np.random.default_rng(1)
    return Peft(config(4), {name: pair(rng, 4, *shapes[f"{name}.weight"]) for name in (Q, GATE)})


def scale(path: Path, module: str, **fields: Any) -> float:
    Peft({**config(8), **fields}, {}).write(path)
    return read_config(path).scale_of(module)


def test_scales_are_pefts(tmp_path: Path) -> None:
    """alpha / r, or alpha / sqrt(r) with rsLoRA; the first pattern whose end fits decides."""
    assert scale(tmp_path, Q) == 2
    assert scale(tmp_path, Q, use_rslora=True, r=16, lora_alpha=12) == 3
    patterns = {"rank_pattern": {"q_proj": 4, "0.self_attn.q_proj": 2}, "alpha_pattern": {"k_proj": 1}}
    assert scale(tmp_path, Q, **patterns) == 16 / 4
    assert scale(tmp_path, Q.replace("q_proj", "k_proj"), **patterns) == 1 / 8
    assert scale(tmp_path, Q, alpha_pattern={f"^{Q}": 40, "q_proj": 1}) == 5
    assert scale(tmp_path, Q, rank_pattern={"proj": 1, "^q_proj": 1}) == 2


def test_what_is_read_is_what_was_saved(
    peft: Peft, model: registry.Model, graph: Graph, tmp_path: Path
) -> None:
    adapter = read_adapter(peft.write(tmp_path), model, graph)
    assert adapter.rank == 4
    assert adapter.layers.keys() == {f"{Q}.weight", f"{GATE}.weight"}
    a, b = peft.modules[Q]
    layer = adapter.layers[f"{Q}.weight"]
    np.testing.assert_array_equal(layer.a, a)
    np.testing.assert_allclose(layer.merged(), 2 * (b @ a), rtol=1e-5)
    assert bytes_needed(tmp_path) * 2 == bytes_needed(tmp_path, DType.FP32) == adapter.nbytes


def test_equal_adapters_have_one_digest(
    peft: Peft, model: registry.Model, graph: Graph, tmp_path: Path
) -> None:
    read = read_adapter(peft.write(tmp_path / "a"), model, graph)
    again = Peft({**peft.config, "base_model_name_or_path": "other"}, dict(reversed(peft.modules.items())))
    assert read_adapter(again.write(tmp_path / "b"), model, graph).digest == read.digest
    stronger = Peft({**peft.config, "lora_alpha": 9}, peft.modules)
    assert read_adapter(stronger.write(tmp_path / "c"), model, graph).digest != read.digest
    peft.modules[Q][1][0, 0] += 1
    assert read_adapter(peft.write(tmp_path / "d"), model, graph).digest != read.digest


REFUSED = {
    "peft_type": "IA3",
    "bias": "all",
    "use_dora": True,
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "layer_replication": [[0, 2]],
    "alora_invocation_tokens": [5],
    "trainable_token_indices": [1],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "init_lora_weights": "pissa_niter_4",
    "use_qalora": True,
    "arrow_config": {"top_k": 2},
    "r": 0,
    "lora_alpha": "8",
    "target_modules": 5,
    "rank_pattern": {"(a+)+$": 3},
    "alpha_pattern": [],
}


@pytest.mark.parametrize(("key", "value"), [*REFUSED.items(), ("init_lora_weights", "olora"), ("r", 513)])
def test_what_is_not_computed_is_refused_by_name(
    key: str, value: object, peft: Peft, model: registry.Model, graph: Graph, tmp_path: Path
) -> None:
    if value == []:
        value = ["x"]
    folder = Peft({**peft.config, key: value}, peft.modules).write(tmp_path)
    with pytest.raises(UserError, match=rf"adapter_config.json: {key}"):
        read_adapter(folder, model, graph)


def test_what_peft_writes_without_meaning_is_taken(
    peft: Peft, model: registry.Model, graph: Graph, tmp_path: Path
) -> None:
    said = {
        "task_type": "CAUSAL_LM",
        "lora_dropout": 0.1,
        "inference_mode": True,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "layers_to_transform": [0, 1],
        "loftq_config": {},
        "use_dora": False,
        "init_lora_weights": "gaussian",
        "target_modules": ["q_proj", "gate_proj"],
        "revision": None,
        "alora_invocation_tokens": None,
        "a_key_of_tomorrow": None,
        "peft_version": "0.20",
    }
    assert read_adapter(Peft({**peft.config, **said}, peft.modules).write(tmp_path), model, graph).layers


Change = Callable[[Peft], Any]


def with_value(value: float) -> Change:
    def change(peft: Peft) -> None:
        peft.modules[Q][0][1, 2] = value

    return change


def as_module(name: str) -> Change:
    return lambda peft: peft.modules.__setitem__(name, peft.modules[Q])  # type: ignore[attr-defined]


def beside(name: str) -> Change:
    return lambda peft: peft.also.__setitem__(name, np.zeros((4, 4), np.float32))


HOSTILE: list[tuple[Change, str]] = [
    (with_value(np.nan), rf"{Q}.lora_A.weight holds nan"),
    (with_value(np.inf), rf"{Q}.lora_A.weight holds inf"),
    (as_module("model.layers.7.self_attn.q_proj"), "layers.7.self_attn.q_proj.lora_A.weight changes no"),
    (as_module("model.embed_tokens"), "model.embed_tokens.lora_A.weight changes no linear layer"),
    (as_module("../../etc/passwd"), "passwd.lora_A.weight changes no linear layer"),
    (as_module("lm_head"), r"lm_head.lora_B.weight has shape"),
    (beside(f"{PREFIX}{Q}.lora_embedding_A"), "lora_embedding_A is not supported"),
    (beside(f"{PREFIX}{Q}.lora_magnitude_vector"), "lora_magnitude_vector is not supported"),
    (beside(f"{PREFIX}{Q}.lora_A.bias"), "lora_A.bias is not supported"),
    (beside(f"{PREFIX}lm_head.base_layer.weight"), "is a copy of the model's own weights"),
    (beside("lm_head.weight"), "lm_head.weight is not supported"),
    (beside(f"{PREFIX}model.norm.lora_A.weight"), "model.norm.lora_B.weight is missing"),
    (lambda peft: peft.config.update(r=3), r"q_proj.lora_A.weight has shape \[4, "),
    (lambda peft: peft.config.update(target_modules=["k_proj"]), "q_proj is none of target_modules"),
]


@pytest.mark.parametrize(("change", "error"), HOSTILE, ids=[error for _, error in HOSTILE])
def test_hostile_tensors_are_refused_by_name(
    change: Change, error: str, peft: Peft, model: registry.Model, graph: Graph, tmp_path: Path
) -> None:
    change(peft)
    with pytest.raises(UserError, match=rf"adapter_model.safetensors: .*{error}"):
        read_adapter(peft.write(tmp_path), model, graph)


def test_sizes_are_told_before_anything_is_loaded(
    peft: Peft, model: registry.Model, graph: Graph, tmp_path: Path
) -> None:
    """The bound holds for the header, which may lie about terabytes in a short file."""
    peft.write(tmp_path)
    needed = bytes_needed(tmp_path, DType.FP32)
    with pytest.raises(UserError, match=f"takes {needed} bytes in fp32, more than {needed - 1}"):
        read_adapter(tmp_path, model, graph, most_bytes=needed - 1)
    with pytest.raises(UserError, match="r must be an integer from 1 to 3"):
        read_adapter(tmp_path, model, graph, most_rank=3)
    file = tmp_path / "adapter_model.safetensors"
    entry = {"dtype": "F32", "shape": [4, 1 << 40], "data_offsets": [0, 1 << 44]}
    text = json.dumps({f"{PREFIX}{Q}.lora_A.weight": entry}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(UserError, match="truncated"):
        bytes_needed(tmp_path)


def test_pickles_and_links_out_of_the_directory_are_refused(peft: Peft, tmp_path: Path) -> None:
    folder = peft.write(tmp_path / "a")
    file = folder / "adapter_model.safetensors"
    file.rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors"):
        bytes_needed(folder)
    file.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(UserError, match="link out of"):
        bytes_needed(folder)
    file.unlink()
    (folder / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=re.escape("adapter_model.bin: pickled weights can run code")):
        bytes_needed(folder)
    with pytest.raises(UserError, match=r"holds no adapter_config\.json"):
        bytes_needed(tmp_path)


def test_a_model_whose_latents_are_no_linears_says_so(folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = registry.load(folder("deepseek_v3"))
    module = "model.layers.0.self_attn.kv_b_proj"
    path = Peft(config(2), {module: pair(np.random.default_rng(0), 2, 8, 8)}).write(tmp_path)
    with pytest.raises(UserError, match=f"{module}.lora_A.weight changes no linear layer"):
        read_adapter(path, model, model.graph(FORMATS["fp32"]))
