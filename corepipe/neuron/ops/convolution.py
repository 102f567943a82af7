"""Ops on images: convolutions, pooling, concatenation and upsampling of maps.  They are timed, not computed
yet.

A map is a Value with a row per pixel and a column per channel; a step counts images.  On the device channels
lie across the 128 partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from corepipe.neuron.chips.engines import Cost, OpCost
from corepipe.neuron.chips.rates import TILE, CoreRates
from corepipe.neuron.formats import DType, Format
from corepipe.neuron.ops.base import NewAxisOp
from corepipe.neuron.ops.costs import Passes, held_elements
from corepipe.neuron.values import InputKind, Value, WeightRole, WeightSpec, weight_bytes

MULTIPLY_ADD = Passes(two=1)  # one tap of a depthwise convolution (nki/api/nki/isa, tensor_tensor)


class ImageFunction(StrEnum):
    """The function of a convolution's sums: one pass of ScalarE as they leave PSUM (nki/api/nki/isa,
    activation)."""

    RELU = "relu"
    LEAKY_RELU = "leaky_relu"  # x / 10 where x is negative, as darknet has it
    SILU = "silu"
    MISH = "mish"  # x tanh(log(1 + exp(x))) (Misra 2019)


class MapSize(NamedTuple):
    """Height and width of a map, in pixels."""

    height: int
    width: int

    @property
    def pixels(self) -> int:
        return self.height * self.width


class Window(NamedTuple):
    """The window of a convolution or a pooling: its size, its stride and the padding around the map, in
    pixels.

    dilation: distance between neighbouring pixels of the window.
    """

    kernel: MapSize
    stride: MapSize = MapSize(1, 1)
    padding: MapSize = MapSize(0, 0)
    dilation: MapSize = MapSize(1, 1)

    @classmethod
    def square(cls, kernel: int, stride: int = 1, padding: int | None = None, dilation: int = 1) -> Window:
        """Returns a window with the same numbers in both directions; by default padded so that a stride of 1
        keeps the map's size."""
        around = dilation * (kernel - 1) // 2 if padding is None else padding
        return cls(*(MapSize(n, n) for n in (kernel, stride, around, dilation)))

    def over(self, image: MapSize) -> MapSize:
        """Returns the size of the result: the number of positions of the window."""
        return MapSize(*(self._places(n, i) for i, n in enumerate(image)))

    def _places(self, length: int, axis: int) -> int:
        seen = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (length + 2 * self.padding[axis] - seen) // self.stride[axis] + 1


class _OnMaps(NewAxisOp):
    """Base of the Ops on maps: their channels stay together."""

    __slots__ = ()

    def refuses_cut(self) -> str:
        return f"{type(self).__name__} is not cut by channels"

    def _beside_maps(self, one: OpCost, fmt: Format, rates: CoreRates) -> OpCost:
        """Adds the memory traffic of maps that are too large to stay on chip.

        The images of a batch are processed one after the other: for ResNet-152's and VGG-11's batches of 64
        the maps of all images would not fit either, and they take no longer per image than few.  The part of
        a map that is read stays on chip while windows overlap there, so that each is read once.
        """
        read = sum(
            size for size in (_map_bytes(value, fmt) for value in self.values()) if size > rates.on_chip
        )
        made = _map_bytes(self.out, fmt)
        written = made if made > rates.on_chip else 0.0
        moved = one.dma[1] + (read + written) / rates.memory
        return replace(one, dma=(one.dma[0], moved), read=(one.read[0], one.read[1] + read), written=written)


@dataclass(frozen=True, slots=True)
class Pixels(NewAxisOp):
    """The input images of a step: all channels of each pixel."""

    @property
    def reads(self) -> InputKind:
        return InputKind.PIXELS

    def given(self) -> int:
        return self.out.width

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        size = _map_bytes(self.out, fmt)
        moved = (0.0, size / rates.memory)
        return OpCost(self.out.rows.number, dma=moved, start=rates.start, read=(0.0, size))


@dataclass(frozen=True, slots=True)
class Convolution(_OnMaps):
    """out = function(the window's pixels @ weight.T + bias + residual) at each position of the window.

    added_last: function(...) + residual instead.

    weight is [channels, height x width of the window x channels of a group]; image is x's size.  A batch norm
    is folded into weight and bias.  Each of `groups` reads its own channels of x; with one channel each the
    convolution is depthwise.
    """

    x: Value
    weight: WeightSpec
    bias: WeightSpec | None
    image: MapSize
    window: Window
    groups: int = 1
    function: ImageFunction | None = None
    residual: Value | None = None
    added_last: bool = False

    @property
    def contraction(self) -> int:
        """Elements of x that are summed for one element of the result."""
        return self.window.kernel.pixels * self.x.width // self.groups

    @property
    def is_depthwise(self) -> bool:
        """True if each channel is summed by itself, which is not a matrix product."""
        return self.groups > 1 and self.contraction == self.window.kernel.pixels

    def contradiction(self) -> str | None:
        makes = self.window.over(self.image).pixels
        if (self.x.rows.each, self.out.rows.each) != (self.image.pixels, makes):
            return f"{self.weight.name} reads or makes maps of another size"
        if self.x.width % self.groups or self.out.width % self.groups:
            return f"{self.weight.name} has {self.groups} groups, which do not divide its channels"
        return (
            None if self.weight.shape == (self.out.width, self.contraction) else f"{self.weight.name} differs"
        )

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        """Returns the cost of an implicit product: the array's rows are the contraction, its columns the
        positions."""
        places, channels = self.out.rows.each, self.out.width
        made = places * _lanes(channels, rates)
        vector = made * (1 if self.residual is None else 2) + self._casts(fmt, rates)
        if self.is_depthwise:
            vector += made * self.window.kernel.pixels * MULTIPLY_ADD.cycles(fmt)
        tiles = self.groups * held_elements(channels // self.groups, self.contraction, rates)
        stored = weight_bytes(self.weight.shape, WeightRole.MATRIX, fmt) * rates.read_share
        one = OpCost(
            self.out.rows.number,
            tensor=0.0 if self.is_depthwise else 2 * places * tiles / rates.matmul,
            min_rows=rates.min_rows / places,
            vector=(rates.pass_seconds, vector / rates.vector),
            scalar=(0.0, made / rates.scalar if self.function is not None else 0.0),
            dma=(stored / rates.memory, 0.0),
            start=rates.start,
            read=(stored, 0.0),
            flops=2.0 * places * channels * self.contraction,
        )
        return self._beside_maps(one, fmt, rates)

    def _casts(self, fmt: Format, rates: CoreRates) -> int:
        """Returns the elements per image that are converted before they meet narrower weights."""
        converted = fmt.compute is DType.FP32 and fmt.multiplied is not DType.FP32
        return self.image.pixels * _lanes(self.x.width, rates) if converted else 0


@dataclass(frozen=True, slots=True)
class Upconvolution(_OnMaps):
    """Each pixel of x becomes factor x factor pixels of the result, by one matrix for each of them.

    weight is [channels x factor x factor, channels of x]: a transposed convolution whose stride is the size
    of its window.
    """

    x: Value
    weight: WeightSpec
    bias: WeightSpec | None
    factor: int = 2

    def contradiction(self) -> str | None:
        columns = self.out.width * self.factor**2
        fits = self.weight.shape == (columns, self.x.width)
        fits &= self.out.rows.each == self.x.rows.each * self.factor**2
        return None if fits else f"{self.weight.name} has another shape than its maps"

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        parts, pixels = self.factor**2, self.x.rows.each
        stored = weight_bytes(self.weight.shape, WeightRole.MATRIX, fmt) * rates.read_share
        one = OpCost(
            self.out.rows.number,
            tensor=2 * parts * pixels * held_elements(self.out.width, self.x.width, rates) / rates.matmul,
            min_rows=rates.min_rows / pixels,
            vector=(rates.pass_seconds, self.out.rows.each * _lanes(self.out.width, rates) / rates.vector),
            dma=(stored / rates.memory, 0.0),
            start=rates.start,
            read=(stored, 0.0),
            flops=2.0 * parts * pixels * self.out.width * self.x.width,
        )
        return self._beside_maps(one, fmt, rates)


class PoolKind(StrEnum):
    """The function of the pixels in a window."""

    MAX = "max"
    AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class WindowPool(_OnMaps):
    """out = the maximum or the mean of the window, channel by channel; image is x's size."""

    x: Value
    image: MapSize
    window: Window
    kind: PoolKind = PoolKind.MAX

    def contradiction(self) -> str | None:
        sizes = self.image.pixels, self.window.over(self.image).pixels
        return None if sizes == (self.x.rows.each, self.out.rows.each) else "a pool has maps of another size"

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        taken = self.out.rows.each * self.window.kernel.pixels * _lanes(self.out.width, rates)
        return self._beside_maps(_passes(self.out, taken, rates), fmt, rates)


@dataclass(frozen=True, slots=True)
class Upsample(_OnMaps):
    """Repeats each pixel of x, factor x factor times."""

    x: Value
    factor: int = 2

    def contradiction(self) -> str | None:
        fits = self.out.rows.each == self.x.rows.each * self.factor**2
        return None if fits else "an enlarged map has another size than factor times its own"

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        copied = self.out.rows.each * _lanes(self.out.width, rates)
        return self._beside_maps(_passes(self.out, copied, rates), fmt, rates)


@dataclass(frozen=True, slots=True)
class Concatenate(_OnMaps):
    """The channels of several maps of one size, one after the other.

    It takes no time: each part is written to its place in the whole.
    """

    parts: tuple[Value, ...]

    def contradiction(self) -> str | None:
        fits = self.out.width == sum(part.width for part in self.parts)
        fits &= all(part.rows == self.out.rows for part in self.parts)
        return None if fits else "maps that are joined differ in size"

    def cost(self, _fmt: Format, _rates: CoreRates) -> Cost:
        return OpCost(self.out.rows.number)


def _passes(out: Value, elements: int, rates: CoreRates) -> OpCost:
    """Returns the cost of a pass of VectorE over so many elements per image."""
    vector = (rates.pass_seconds, elements / rates.vector)
    return OpCost(out.rows.number, vector=vector, start=rates.start)


def _lanes(channels: int, rates: CoreRates) -> int:
    """Returns the channels rounded up to whole partitions: all partitions work at once, busy or not."""
    return ceil(channels / TILE) * TILE if rates.array else channels


def _map_bytes(value: Value, fmt: Format) -> float:
    """Returns the bytes per image."""
    return float(value.rows.each * value.width * fmt.compute.bytes)
