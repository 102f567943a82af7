"""Convolutional networks have their published shapes: parameters, multiply-adds, results."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.errors import UserError
from corepipe.models.published import config
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.constants import IDEAL
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.compiler import check, compile_for_timing
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Convolution
from corepipe.neuron.ops.convolution import ImageFunction
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.values import OutputKind, weight_bytes

IMAGE = StepShape((1, 1), 1, 1, 1)


def cost_of(name: str, image: int | None = None) -> CostModel:
    found = architecture(name)
    graph = (found if image is None else found.resized(image)).graph(FORMATS["bf16"])
    programs = compile_for_timing(graph, Placement())
    return CostModel(programs, instance("inf2.xlarge"), PROFILES["data-parallel"], constants=IDEAL)


@pytest.mark.parametrize(
    ("name", "millions", "multiply_adds"),
    [
        ("resnet-18", 11.69, 1.814e9),
        ("resnet-34", 21.80, 3.664e9),
        ("resnet-50", 25.56, 4.089e9),
        ("resnet-101", 44.55, 7.801e9),
        ("resnet-152", 60.19, 11.514e9),
        ("vgg-11", 132.86, 7.609e9),
        ("vgg-13", 133.05, 11.308e9),
        ("vgg-16", 138.36, 15.470e9),
        ("vgg-19", 143.67, 19.632e9),
        ("unet", 31.04, None),
        ("yolo-v4", 64.36, 128.459e9 / 2),
    ],
)
def test_published_sizes(name, millions, multiply_adds):
    """The sizes are torchvision's; darknet's for yolov4.cfg count a multiply-add as two.

    A folded batch norm has one vector instead of two, so there are a few parameters fewer.
    """
    found = architecture(name)
    check(found.graph(FORMATS["bf16"]))
    assert found.parameters / 1e6 == pytest.approx(millions, rel=3e-3)
    if multiply_adds is not None:
        flops = sum(time.flops for time in cost_of(name).op_times(0, IMAGE))
        assert flops / 2 == pytest.approx(multiply_adds, rel=2e-3)


def test_stages_of_resnet_50():
    graph = architecture("ResNet50").graph(FORMATS["bf16"])
    kept = [op for op in graph.ops if isinstance(op, Convolution)]
    assert len(kept) == 53 + 1  # the classes
    assert (kept[0].out.rows.name, kept[0].out.width) == ("112x112", 64)
    blocks = [op for op in kept if op.residual is not None]
    assert [(op.out.rows.name, op.out.width) for op in blocks] == [
        *[("56x56", 256)] * 3, *[("28x28", 512)] * 4, *[("14x14", 1024)] * 6, *[("7x7", 2048)] * 3,
    ]  # fmt: skip
    assert (graph.outputs[0].kind, graph.outputs[0].value.width) == (OutputKind.VECTOR, 1000)
    assert graph.num_layers == 17


def test_a_config_says_how_many_labels_and_channels(tmp_path):
    file = tmp_path / "config.json"
    changes = {"num_labels": None, "id2label": {"0": "cat", "1": "dog"}, "embedding_size": 32}
    file.write_text(json.dumps({**config("resnet-18"), **changes}))
    graph = architecture(str(file)).graph(FORMATS["bf16"])
    assert graph.outputs[0].value.width == 2
    assert graph.ops[1].out.width == 32


def test_the_three_maps_of_yolov4():
    graph = architecture("YOLOv4").graph(FORMATS["bf16"])
    kept = [op for op in graph.ops if isinstance(op, Convolution)]
    assert len(kept) == 110
    assert sum(op.function is ImageFunction.MISH for op in kept) == 72
    assert [(out.value.rows.name, out.value.width) for out in graph.outputs] == [
        ("76x76", 255), ("38x38", 255), ("19x19", 255),
    ]  # fmt: skip


def test_unet_gives_the_classes_of_each_pixel():
    (output,) = architecture("unet").graph(FORMATS["bf16"]).outputs
    assert (output.kind, output.value.rows.each, output.value.width) == (OutputKind.MAP, 224 * 224, 2)


def test_images_and_maps_go_over_the_hosts_link():
    """The link transfers all pixels of an image in the compute format, and YOLOv4's three maps back."""
    unet, yolo = cost_of("unet"), cost_of("yolo-v4")
    assert unet.input_seconds(IMAGE) == pytest.approx(3 * 224 * 224 * 2 / 3.4e9)
    assert unet.output_seconds(IMAGE) == pytest.approx(2 * 224 * 224 * 2 / 3.4e9)
    cells = 76**2 + 38**2 + 19**2
    assert yolo.output_seconds(IMAGE) == pytest.approx(255 * cells * 2 / 3.4e9)


def test_weights_are_read_once_a_batch():
    graph = architecture("resnet-18").graph(FORMATS["bf16"])
    stored = sum(weight_bytes(s.shape, s.role, graph.format) for s in graph.weights() if len(s.shape) == 2)
    for batch in (1, 4):
        times = cost_of("resnet-18").op_times(0, StepShape((batch, batch), batch, batch, batch))
        pixels = batch * 224 * 224 * 3 * 2
        assert sum(time.hbm_read_bytes for time in times) == stored + pixels


@given(st.sampled_from(["resnet-18", "unet"]), st.sampled_from([(96, 224), (224, 256), (224, 448)]))
def test_larger_images_and_batches_are_never_faster(name, sides):
    small, large = (cost_of(name, side) for side in sides)
    for batch in (1, 3, 16):
        step = StepShape((batch, batch), batch, batch, batch)
        more = StepShape((batch + 1,) * 2, *(batch + 1,) * 3)
        assert small.latency(step) <= large.latency(step)
        assert small.latency(step) <= small.latency(more)


@pytest.mark.parametrize(
    ("name", "key", "value", "why"),
    [
        ("unet", "image_size", 100, "multiple of 16"),
        ("vgg-16", "image_size", 100, "multiple of 224"),
        ("yolo-v4", "image_size", 600, "multiple of 32"),
        ("resnet-50", "depths", [3, 4], "as many stages"),
        ("resnet-50", "depths", [3, 4, 6, -1], "integers from 1"),
        ("resnet-50", "layer_type", "odd", "layer_type"),
        ("resnet-50", "downsample_in_bottleneck", True, "not supported"),
        ("resnet-50", "hidden_act", "gelu", "hidden_act"),
        ("yolo-v4", "depths", [1, 2], "5 stages"),
    ],
)
def test_configs_that_are_refused(name, key, value, why, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config(name), key: value}))
    with pytest.raises(UserError, match=why):
        architecture(str(file)).graph(FORMATS["bf16"])
