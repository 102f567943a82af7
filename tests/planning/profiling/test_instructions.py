"""Matmul instructions of Ops, counted by hand."""

from __future__ import annotations

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Attention, Convolution, Experts, LatentAttention, Linear, RMSNorm
from corepipe.neuron.timing.cost import StepShape
from corepipe.planning.profiling.instructions import matmul_instructions


def count(model: str, kind: type, shape: StepShape) -> int:
    """Returns the instructions of the model's first Op of a kind, not divided."""
    ops = architecture(model).graph(FORMATS["bf16"], 1024).ops
    return matmul_instructions(next(op for op in ops if isinstance(op, kind)), shape)


@pytest.mark.parametrize(("rows", "moving"), [(1, 1), (512, 1), (513, 2)])
def test_a_linear_is_tiles_of_its_matrix_for_each_512_rows(rows, moving):
    """q_proj is 576 x 576: five by five tiles."""
    assert count("smollm2-135m", Linear, StepShape.of([(0, rows)], 1)) == 25 * moving


def test_attention_multiplies_twice_for_each_key_value_head():
    """3 key/value heads of 64, 3 query heads each; 300 tokens are three tiles of keys."""
    assert count("smollm2-135m", Attention, StepShape.decode(4, 300)) == 2 * 3 * 4 * 3
    assert count("smollm2-135m", Attention, StepShape.of([(0, 300)], 1)) == 2 * 3 * 3 * 2


def test_few_rows_load_the_experts_they_go_to():
    """Mixtral: 14336 columns of each expert, 112 tiles, by 32 of the hidden size; three matrices."""
    assert count("mixtral-8x7b", Experts, StepShape.decode(1, 100)) == 2 * 3 * 112 * 32
    assert count("mixtral-8x7b", Experts, StepShape.decode(32, 100)) == 8 * 3 * 112 * 32


@pytest.mark.parametrize(("images", "moving"), [(1, 25), (2, 49)])
def test_a_convolution_is_tiles_of_its_window_for_each_512_places(images, moving):
    """The first of ResNet-50: 7 x 7 x 3 of the array's rows are two tiles; 112 x 112 places."""
    shape = StepShape((images, images), images, images, images)
    op = next(
        op for op in architecture("resnet-50").graph(FORMATS["bf16"]).ops if isinstance(op, Convolution)
    )
    assert matmul_instructions(op, shape) == 2 * moving


def test_other_ops_are_none():
    assert count("smollm2-135m", RMSNorm, StepShape.decode(4, 300)) == 0


def test_latents_are_shared_by_all_heads():
    """DeepSeek-V3 keeps 512 + 64 elements a token: five tiles wide, one key for all of a core's heads."""
    assert count("deepseek-v3", LatentAttention, StepShape.decode(1, 128)) == 2 * 5
