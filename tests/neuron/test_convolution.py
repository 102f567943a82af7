"""Costs of convolutions, pools and joined maps, and the graphs that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.axes import fixed
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.rates import core_rates
from corepipe.neuron.compile.compiler import check, compile_for_timing, compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, DType, Format
from corepipe.neuron.ops import Concatenate, Convolution, Upconvolution, Upsample, WindowPool
from corepipe.neuron.ops.convolution import ImageFunction, MapSize, Window
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.values import Value, WeightRole, WeightSpec, pixels

INF2 = instance("inf2.xlarge")
BF16 = FORMATS["bf16"]
MIXED = Format("fp32+matmult-bf16", DType.BF16, DType.BF16, DType.FP32)
RATES = core_rates(INF2, BF16, (0,), sharing=1, read_share=1.0)
PE, VECTOR, SCALAR = 2 * 128 * 128 * 2.8e9, 128 * 1.12e9, 128 * 1.4e9


MAP, AROUND = MapSize(56, 56), Window.square(3)


def images(count: int) -> StepShape:
    return StepShape((count, count), count, count, count)


def value(number: int, size: MapSize, channels: int) -> Value:
    return Value(number, fixed("channels", channels), pixels(*size))


def convolution(
    size: MapSize = MAP,
    channels: tuple[int, int] = (64, 128),
    window: Window = AROUND,
    groups: int = 1,
    function: ImageFunction | None = ImageFunction.RELU,
) -> Convolution:
    given, made = channels
    x, out = value(0, size, given), value(1, window.over(size), made)
    axes = (out.axis, fixed("window", window.kernel.pixels * given // groups))
    weight = WeightSpec("weight", axes, WeightRole.MATRIX)
    return Convolution(0, out, x, weight, None, size, window, groups, function)


@pytest.mark.parametrize(
    ("window", "size", "result"),
    [
        (Window.square(7, 2), 224, 112),
        (Window.square(3, 2), 112, 56),
        (Window.square(3), 56, 56),
        (Window.square(1, 2), 56, 28),
        (Window.square(2, 2, 0), 224, 112),
        (Window.square(3, dilation=2), 32, 32),
        (Window.square(3, 1, 0, 2), 32, 28),
        (Window.square(13), 19, 19),
    ],
)
def test_places_that_a_window_takes(window, size, result):
    assert window.over(MapSize(size, size)) == (result, result)


def test_an_implicit_product_by_hand():
    """3 x 3 x 64 = 576 rows of the array are 5 tiles; 56 x 56 columns pass each."""
    engines = convolution().cost(BF16, RATES).engines(images(1))
    assert engines.tensor == pytest.approx(5 * 3136 * 128 * 128 * 2 / 92e12)
    assert engines.vector == pytest.approx(3136 * 128 / VECTOR)
    assert engines.scalar == pytest.approx(3136 * 128 / SCALAR)
    assert engines.read == 576 * 128 * 2
    assert engines.written == 0
    assert engines.flops == 2 * 3136 * 576 * 128


def test_what_else_passes_over_the_elements():
    """fp32 maps that meet bf16 weights are converted; a residual is one more pass."""
    plain = convolution(function=None)
    assert plain.cost(BF16, RATES).engines(images(1)).scalar == 0
    mixed = plain.cost(MIXED, RATES).engines(images(1))
    assert mixed.vector == pytest.approx((3136 * 128 + 3136 * 128) / VECTOR)
    added = replace(plain, residual=value(2, MapSize(56, 56), 128))
    assert added.cost(BF16, RATES).engines(images(1)).vector == pytest.approx(2 * 3136 * 128 / VECTOR)


def test_small_maps_take_as_long_as_the_arrays_least_columns():
    small = convolution(MapSize(7, 7), (128, 128)).cost(BF16, RATES)
    tiles = 9 * 128 * 128 * 2 / 92e12
    assert small.engines(images(1)).tensor == pytest.approx(64 * tiles)
    assert small.engines(images(4)).tensor == pytest.approx(4 * 49 * tiles)


def test_groups_and_depthwise():
    """Groups have a product each; with one channel each it is a pass of two operands for each tap."""
    grouped = convolution(channels=(256, 256), groups=2).cost(BF16, RATES).engines(images(1))
    assert grouped.tensor == pytest.approx(2 * 9 * 3136 * 128 * 128 * 2 / 92e12)
    depthwise = convolution(channels=(128, 128), groups=128, function=None)
    engines = depthwise.cost(BF16, RATES).engines(images(1))
    assert (engines.tensor, depthwise.contraction) == (0, 9)
    assert engines.vector == pytest.approx((1 + 9) * 3136 * 128 / VECTOR)
    assert engines.flops == 2 * 3136 * 128 * 9


def test_maps_that_do_not_fit_on_chip_cross_memory_once():
    """448 x 448 x 64 in bf16 are 25.7 MB, more than 24 MiB; the 32 channels that are read are less."""
    assert RATES.on_chip == 24 * 2**20
    assert convolution().cost(BF16, RATES).engines(images(64)).written == 0
    engines = convolution(MapSize(448, 448), (32, 64)).cost(BF16, RATES).engines(images(3))
    assert engines.written == 3 * 448 * 448 * 64 * 2
    assert engines.read == 9 * 32 * 64 * 2
    reading = convolution(MapSize(448, 448), (64, 32)).cost(BF16, RATES).engines(images(3))
    assert (reading.written, reading.read) == (0, 9 * 64 * 32 * 2 + 3 * 448 * 448 * 64 * 2)
    assert reading.dma == pytest.approx(reading.read / RATES.memory)


def test_pools_upsampling_and_joined_maps():
    x = value(0, MapSize(112, 112), 64)
    pool = WindowPool(0, value(1, MapSize(56, 56), 64), x, MapSize(112, 112), Window.square(3, 2))
    assert pool.cost(BF16, RATES).engines(images(2)).vector == pytest.approx(2 * 9 * 3136 * 128 / VECTOR)
    larger = Upsample(0, value(1, MapSize(224, 224), 64), x)
    assert larger.cost(BF16, RATES).engines(images(1)).vector == pytest.approx(224 * 224 * 128 / VECTOR)
    joined = Concatenate(0, value(1, MapSize(112, 112), 128), (x, x))
    assert joined.cost(BF16, RATES).engines(images(1)).seconds == 0
    weight = WeightSpec("up", (fixed("window", 32 * 4), x.axis), WeightRole.MATRIX)
    up = Upconvolution(0, value(1, MapSize(224, 224), 32), x, weight, None)
    assert [op.contradiction() for op in (pool, larger, joined, up)] == [None] * 4
    engines = up.cost(BF16, RATES).engines(images(1))
    assert engines.tensor == pytest.approx(4 * 112 * 112 * 128 * 128 * 2 / 92e12)
    assert engines.flops == 2 * 4 * 112 * 112 * 32 * 64


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (replace(convolution(), image=MapSize(28, 28)), "another size"),
        (replace(convolution(), groups=3), "3 groups"),
        (replace(convolution(), window=Window.square(5)), "differs"),
        (
            WindowPool(
                0, value(1, MapSize(9, 9), 8), value(0, MapSize(9, 9), 8), MapSize(9, 9), Window.square(2, 2)
            ),
            "pool",
        ),
        (Upsample(0, value(1, MapSize(9, 9), 8), value(0, MapSize(9, 9), 8)), "enlarged"),
        (Concatenate(0, value(1, MapSize(9, 9), 8), (value(0, MapSize(9, 9), 4),)), "joined"),
    ],
)
def test_what_contradicts_itself(op, why):
    assert why in op.contradiction()


@pytest.fixture(scope="module")
def resnet():
    return architecture("resnet-18").graph(BF16)


def test_nothing_is_computed(resnet):
    assert resnet.refusal() == "Pixels of layer -1 has no kernel"
    for op in resnet.ops:
        assert op.refuses(BF16) is not None


def test_channels_are_not_cut(resnet):
    with pytest.raises(UserError, match="Convolution is not cut by channels"):
        compile_graph(resnet, Placement(tensor=2))
    check(resnet)


def test_a_pipeline_sends_whole_maps(resnet):
    programs = compile_for_timing(resnet, Placement(pipeline=2))
    cost = CostModel(programs, instance("inf2.8xlarge"), PROFILES["data-parallel"])
    sent = sum(op.out.width * op.out.rows.each for op in programs[1].ops if type(op).__name__ == "Receive")
    assert sent >= 14 * 14 * 128
    assert cost.transfer_seconds(1, images(2)) > sent * 2 * 2 / 440e9


SIZES = st.sampled_from([32, 56, 64, 112, 224])
CHANNELS = st.sampled_from([3, 32, 64, 128, 200, 256])


@given(SIZES, SIZES, CHANNELS, CHANNELS, CHANNELS, st.integers(1, 40), st.integers(1, 40))
def test_more_is_never_faster(size, other, given, made, more, batch, further):
    """Larger maps, more channels, more images."""

    def seconds(side: int, channels: int, count: int) -> float:
        op = convolution(MapSize(side, side), (given, channels))
        return op.cost(MIXED, RATES).engines(images(count)).seconds

    least = seconds(min(size, other), min(made, more), min(batch, further))
    assert seconds(max(size, other), min(made, more), min(batch, further)) >= least
    assert seconds(min(size, other), max(made, more), min(batch, further)) >= least
    assert seconds(min(size, other), min(made, more), max(batch, further)) >= least
