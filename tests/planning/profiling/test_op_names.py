"""Tests of the names of Ops, over the families and the collectives."""

from __future__ import annotations

import pytest

from corepipe.planning.profiling.step_trace import layer_name, op_names
from tests.planning.profiles import run


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (
            "smollm2-135m",
            {"L0 RMSNorm input_layernorm", "L29 Linear mlp.up_proj", "TokenEmbedding model.embed_tokens"},
        ),
        ("gpt2", {"L0 LayerNorm ln_1", "L11 Attention"}),
        ("bert-base-uncased", {"L0 Linear attention.self.query", "L11 LayerNorm output.LayerNorm"}),
    ],
)
def test_names_are_layer_op_and_module(model, names):
    found = op_names(run(model, batch=1, decode_steps=1).programs[0])
    assert names <= set(found)


def test_collectives_and_transfers_say_whose_value_it_is():
    programs = run(tensor=3, pipeline=2).programs
    first, last = op_names(programs[0]), op_names(programs[-1])
    assert "L0 AllReduce self_attn.o_proj" in first
    assert first[-1].endswith("Send core 3")
    assert last[0].endswith("Receive core 2")
    assert last[-1] == "AllGather lm_head"


def test_names_of_layers():
    assert [layer_name(layer, 2) for layer in (-1, 0, 1, 2)] == ["embedding", "layer 0", "layer 1", "head"]
