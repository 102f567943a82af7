"""Mixtures of experts against the reference executor, on every ISA; no row depends on others."""

from __future__ import annotations

import mmap
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from corepipe.kernels import _native, packing
from corepipe.neuron.axes import columns, fixed, hidden
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.numerics.int4 import Int8, Stored
from corepipe.neuron.ops import Experts, Function, Groups, Scoring
from corepipe.neuron.values import Value, WeightRole, WeightSpec
from tests.kernels.harness import elsewhere, in_turn, once, one_step, value
from tests.kernels.linears import Weights, random_weights
from tests.reference.arithmetic import round_to
from tests.reference.ops import compute
from tests.reference.routing import routed

F32 = npt.NDArray[np.float32]
STORED: dict[packing.Kind, str] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "int8": "int8",
    "int8w": "int8-weights",
    "int4g32": "int4-weights",
    "int4g64z": "int4-weights",
}
"""Kinds of matrices, each with its format."""
BOUND = {"fp32": 2e-6, "bf16": 2.0**-7}
"""Largest difference of a result, relative to the largest, by the format that results are rounded to: sums
have another order, and a number between two bf16 may become either."""
MOST = 70


class Rig:
    """One mixture, in the native and in the reference executor."""

    def __init__(
        self,
        kind: packing.Kind,
        experts: int,
        top_k: int,
        width: int = 96,
        ffn: int = 104,
        scoring: Scoring = Scoring.OF_CHOSEN,
        biases: int = 0,
        function: Function = Function.SILU,
        groups: Groups | None = None,
        correction: Sequence[float] | None = None,
        factor: float | None = None,
    ) -> None:
        rng = np.random.default_rng([experts, top_k, width, ffn])
        self.rng, self.format = rng, FORMATS[STORED[kind]]
        shapes = ((ffn, width), (ffn, width), (width, ffn))
        self.weights = [[random_weights(rng, kind, *shape) for shape in shapes] for _ in range(experts)]
        each, stream, middle = fixed("experts", experts), hidden(width), columns("expert_ffn", ffn)
        axes = {"gate": (each, middle, stream), "up": (each, middle, stream), "down": (each, stream, middle)}
        specs = {name: WeightSpec(name, of, WeightRole.MATRIX) for name, of in axes.items()}
        values = Value(2, stream), Value(0, stream), Value(1, each)
        widths = ((experts, ffn), (experts, ffn), (experts, width))[:biases]
        self.biases = [rng.standard_normal(shape).astype(np.float32) for shape in widths]
        vectors = [WeightSpec(name, (each, axes[name][1]), WeightRole.VECTOR) for name in list(axes)[:biases]]
        self.op = Experts(
            0,
            *values,
            **specs,
            top_k=top_k,
            ffn=ffn,
            function=function,
            biases=tuple(vectors),
            scoring=scoring,
            nearness=0.2 if scoring is Scoring.OF_NEAR else None,
            correction=None if correction is None else WeightSpec("correction", (each,), WeightRole.VECTOR),
            groups=groups,
            factor=factor,
        )
        self.correction = None if correction is None else np.float32(correction)
        self.matrices = [tuple(one.matrix() for one in expert) for expert in self.weights]

    def rows(self, count: int) -> tuple[F32, F32]:
        """Returns inputs and scores, as they are stored."""
        made = (self.rng.standard_normal((count, value.width)) for value in (self.op.x, self.op.routing))
        x, scores = (round_to(array.astype(np.float32), self.format.compute) for array in made)
        return x, scores

    def native(self, x: F32, scores: F32, threads: int = 2) -> F32:
        return run([self.program(x, scores)], x, scores, threads=threads)[0]

    def routing(self) -> dict[str, Any]:
        op = self.op
        return {
            "top_k": op.top_k,
            "scoring": op.scoring.value,
            "nearness": op.nearness or 0.0,
            "correction": self.correction,
            "groups": op.groups or (1, 1),
            "factor": op.factor or 1.0,
        }

    def made(self, *widths: int) -> _native.Program:
        return _native.Program(list(widths), MOST, round_bf16=self.format.compute.value == "bf16")

    def program(self, x: F32, scores: F32) -> _native.Program:
        program, function = self.made(x.shape[1], scores.shape[1], x.shape[1]), self.op.function.value
        matrices = zip(*self.matrices, strict=True)
        program.experts(0, 1, 2, *matrices, function=function, biases=self.biases, **self.routing())
        return program

    def scratch_bytes(self, x: F32, scores: F32) -> int:
        """Returns the working memory of one step, in a pool that ran no other step."""
        return int(step([self.program(x, scores)], x, scores, 2, 2)["scratch_bytes"])

    def divided(self, x: F32, scores: F32, bounds: Sequence[int], threads: int = 2) -> list[F32]:
        """Returns the final results of several programs; each has the experts between two bounds."""
        programs, routing, width = [], self.routing(), x.shape[1]
        for first, end in pairwise(bounds):
            program = self.made(width, scores.shape[1], self.op.top_k * width, width)
            own, biases = self.matrices[first:end], [bias[first:end].copy() for bias in self.biases]
            shared = {"function": self.op.function.value, "biases": biases, "first": first, **routing}
            program.experts(0, 1, 2, *zip(*own, strict=True), **shared)
            program.gather_slots(2, 1, 3, list(range(len(bounds) - 1)), list(bounds), **routing)
            value(program, 2)[:] = np.nan  # places of other cores' experts
            programs.append(program)
        return run(programs, x, scores, 3, threads)

    def reference(self, x: F32, scores: F32) -> F32:
        return compute(self.op, _Context(self, {0: x, 1: scores}))


NAMES = ("gate", "up", "down")


def assert_twin(rig: Rig, x: F32, scores: F32) -> None:
    wanted = rig.reference(x, scores)
    error = np.abs(rig.native(x, scores) - wanted).max()
    assert error <= BOUND[rig.format.compute.value] * np.abs(wanted).max()


def run(
    programs: Sequence[_native.Program], x: F32, scores: F32, out: int = 2, threads: int = 2
) -> list[F32]:
    """Returns a buffer of each of the programs of one replica."""
    step(programs, x, scores, out, threads)
    return [value(program, out)[: len(x), : x.shape[1]].copy() for program in programs]


def step(programs: Sequence[_native.Program], x: F32, scores: F32, out: int, threads: int) -> dict[str, Any]:
    for program in programs:
        for number, rows in enumerate((x, scores)):
            value(program, number)[: len(rows), : rows.shape[1]] = rows
    return one_step(programs, len(x), out, threads)


class _Context:
    """The context of one Op for the reference executor."""

    def __init__(self, rig: Rig, values: dict[int, F32]) -> None:
        self._rig, self._values, self.format = rig, values, rig.format

    def __getitem__(self, value: Value) -> F32:
        return self._values[value.id]

    def matrices(self, spec: WeightSpec) -> Sequence[Stored]:
        return [stored(expert[NAMES.index(spec.name)]) for expert in self._rig.weights]

    def optional(self, spec: WeightSpec | None) -> F32 | None:
        return None if spec is None else self.weight(spec)

    def weight(self, spec: WeightSpec) -> F32:
        if spec.name == "correction":
            return self._rig.correction
        return self._rig.biases[NAMES.index(spec.name)]


def stored(weights: Weights) -> Stored:
    if weights.kind in packing.INT4_KINDS:
        return weights.int4()
    return weights.dense() if weights.scale is None else Int8(weights.values, weights.scale)


@pytest.mark.parametrize(
    ("kind", "scoring", "shape"),
    in_turn(
        list(STORED),
        list(Scoring),
        elsewhere([(7, 2, 1), (7, 2, 40), (33, 4, 9), (3, 3, 70), (1, 1, 5)], [(7, 2, 1), (7, 2, 40)]),
    ),
)
def test_it_is_the_twin(kind: packing.Kind, scoring: Scoring, shape: tuple[int, int, int]) -> None:
    experts, top_k, rows = shape
    rig = Rig(kind, experts, top_k, scoring=scoring)
    assert_twin(rig, *rig.rows(rows))


@pytest.mark.parametrize("biases", [2, 3])
@pytest.mark.parametrize("function", [Function.SILU, Function.CLAMPED_SWISH])
@pytest.mark.parametrize("kind", STORED)
def test_biases_and_bounds_are_the_twins(kind: packing.Kind, function: Function, biases: int) -> None:
    """A rank whose sum is added to another's has only the first two biases."""
    rig = Rig(kind, 5, 2, biases=biases, function=function)
    x, scores = rig.rows(30)
    assert_twin(rig, x * 8, scores)  # gates reach beyond their bounds


GROUPED = [  # scores, as DeepSeek-V2's and V3's routers have them, and what they take of them
    (Scoring.OF_ALL, None),
    (Scoring.SIGMOID, None),
    (Scoring.SIGMOID_SHARES, None),
    (Scoring.SIGMOID_SHARES, [0.3, -0.4, 0.2, 0, 0.9, -0.9, 0, 0.1, -0.2, 0.5, 0.4, -1.5]),
]


@pytest.mark.parametrize(("scoring", "correction"), GROUPED)
@pytest.mark.parametrize(("groups", "top_k"), [((4, 2), 3), ((3, 1), 4), ((6, 3), 2)])
@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_groups_are_the_routers(
    kind: packing.Kind,
    groups: tuple[int, int],
    top_k: int,
    scoring: Scoring,
    correction: Sequence[float] | None,
) -> None:
    """The choice and the weights are those of transformers' DeepseekV2TopkRouter and DeepseekV3TopkRouter,
    rewritten here in numpy."""
    rig = Rig(kind, 12, top_k, scoring=scoring, groups=Groups(*groups), correction=correction, factor=2.5)
    x, logits = rig.rows(40)
    if scoring is Scoring.OF_ALL:
        scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        choice, two = scores, 1
    else:
        scores = 1 / (1 + np.exp(-logits))
        choice, two = scores + np.float32(0 if correction is None else correction), 2
    by_group = np.sort(choice.reshape(40, groups[0], -1), axis=2)[:, :, -two:].sum(axis=2)
    best = np.argsort(-by_group, axis=1)[:, : groups[1]]
    mask = np.zeros((40, groups[0]), bool)
    np.put_along_axis(mask, best, values=True, axis=1)
    masked = np.where(np.repeat(mask, 12 // groups[0], axis=1), choice, -np.inf)
    taken = np.argsort(-masked, axis=1)[:, :top_k]
    weights = np.take_along_axis(scores, taken, axis=1)
    if scoring is Scoring.SIGMOID_SHARES:
        weights /= weights.sum(axis=1, keepdims=True)
    chosen, shares = routed(rig.op, logits, rig.correction)
    assert (chosen == taken).all()
    np.testing.assert_allclose(shares, 2.5 * weights, rtol=1e-6)
    assert_twin(rig, x, logits)


@pytest.mark.parametrize("scoring", [Scoring.SIGMOID, Scoring.SIGMOID_SHARES])
def test_a_router_of_sigmoids_that_gives_no_number_makes_none(scoring: Scoring) -> None:
    rig = Rig("fp32", 12, 3, scoring=scoring, groups=Groups(4, 2), correction=[0.1] * 12, factor=2.0)
    x, scores = rig.rows(6)
    wanted = rig.native(x, scores)
    scores[1, 7], scores[4, 0] = np.nan, np.inf
    for found in (rig.native(x, scores), rig.reference(x, scores)):
        assert np.isnan(found[[1, 4]]).all()
        assert np.isfinite(np.delete(found, [1, 4], axis=0)).all()
    np.testing.assert_array_equal(np.delete(rig.native(x, scores), [1, 4], 0), np.delete(wanted, [1, 4], 0))


def test_near_scores_share_an_expert_s_weight() -> None:
    """The weights are those of transformers' sparsemixer, rewritten here in numpy."""
    rig = Rig("fp32", 6, 2, scoring=Scoring.OF_NEAR)
    x, _ = rig.rows(5)
    near = [[5, 4.9, 1, 0, 0, 0], [-1, -1.1, -3, -1.15, -5, -9], [0] * 6]
    scores = np.float32([*near, [7, 0, 6, -7, 6.9, 1], [1, 3, 2, 0, -1, 3]])
    chosen, shares = routed(rig.op, scores)
    left = scores.copy()
    for place in range(2):
        top = left.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            masked = (top - scores) / np.maximum(np.abs(scores), top) > np.float32(0.2)
        weights = np.exp(np.where(masked, -np.inf, left) - top)
        index = left.argmax(axis=1)
        assert chosen[:, place].tolist() == index.tolist()
        np.testing.assert_allclose(
            shares[:, place], (weights / weights.sum(1, keepdims=True))[range(5), index]
        )
        left[range(5), index] = -np.inf
    assert_twin(rig, x, scores)


@pytest.mark.parametrize("top_k", [1, 2])
def test_inputs_are_weighed_as_llama_4_has_them(top_k: int) -> None:
    """The results are those of transformers' Llama4TextMoe, rewritten here in numpy: all experts process all
    rows, most of them as zeros.  Scores whose sigmoids are all 1 still decide which experts are chosen."""
    rig = Rig("fp32", 5, top_k, scoring=Scoring.INPUT_SIGMOID)
    x, scores = rig.rows(30)
    scores[:4] += 30
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    kept = np.full_like(scores, -np.inf)
    np.put_along_axis(kept, chosen, np.take_along_axis(scores, chosen, axis=1), axis=1)
    with np.errstate(over="ignore"):
        factors = 1 / (1 + np.exp(-kept))
    wanted = np.zeros_like(x)
    for expert, (gate, up, down) in enumerate([one.dense() for one in each] for each in rig.weights):
        taken = x * factors[:, expert, None]
        gates = taken @ gate.T
        wanted += (taken @ up.T * gates / (1 + np.exp(-gates))) @ down.T
    assert (routed(rig.op, scores)[0] == chosen).all()
    for found in (rig.reference(x, scores), rig.native(x, scores)):
        np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("biases", [0, 3])
@pytest.mark.parametrize("kind", STORED)
def test_no_row_is_dropped_and_each_has_the_bits_that_it_has_alone(kind: packing.Kind, biases: int) -> None:
    """Most rows choose the same two experts, some others, and no row three of the experts."""
    function = Function.CLAMPED_SWISH if biases else Function.SILU
    scoring = Scoring.INPUT_SIGMOID if biases else Scoring.OF_CHOSEN
    rig = Rig(kind, 9, 2, biases=biases, function=function, scoring=scoring)
    x, scores = rig.rows(MOST)
    scores[:60, 3] += 50
    scores[:55, 7] += 40
    scores[:, (0, 4, 8)] -= 90
    alone = np.concatenate([rig.native(x[i : i + 1], scores[i : i + 1], 1) for i in range(MOST)])
    assert (np.abs(alone).max(axis=1) > 0).all()
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(rig.native(x, scores, threads), alone)
    np.testing.assert_array_equal(rig.native(x[::-1], scores[::-1]), alone[::-1])


@pytest.mark.parametrize(
    ("kind", "bounds"),
    in_turn(elsewhere(list(STORED), ["bf16", "int8"]), [(0, 4, 7), (0, 1, 6, 7), (0, 3, 5, 6, 7), range(8)]),
)
def test_experts_of_several_cores_have_the_bits_of_one(kind: packing.Kind, bounds: Sequence[int]) -> None:
    """For any uneven shares; rows choose one expert, have NaN scores, or choose the same experts."""
    groups = {"groups": None, "factor": 2.5, "biases": 3} if len(bounds) % 2 else {}
    for scoring in Scoring:
        rig = Rig(kind, 7, 3, scoring=scoring, **groups)
        for count in (1, 5, MOST):
            x, scores = rig.rows(count)
            scores[count // 2 :, 2] = 40
            scores[:2, 3] = (np.nan, 0)[:count]
            wanted = rig.native(x, scores)
            for threads in (1, 2):
                for found in rig.divided(x, scores, bounds, threads):
                    np.testing.assert_array_equal(found, wanted)


def test_cores_whose_experts_nobody_takes_have_the_sum_as_well() -> None:
    """All rows choose the first two experts, by grouped sigmoids with a correction."""
    rig = Rig(
        *("fp32", 8, 2), scoring=Scoring.SIGMOID_SHARES, groups=Groups(4, 1), correction=[9, 9, *[0] * 6]
    )
    x, scores = rig.rows(9)
    wanted = rig.native(x, scores)
    for found in rig.divided(x, scores, (0, 2, 5, 8)):
        np.testing.assert_array_equal(found, wanted)


def test_of_equal_scores_the_first_are_taken_in_their_order() -> None:
    rig = Rig("fp32", 6, 3)
    x, _ = rig.rows(2)
    scores = np.float32([[1, 2, 1, 2, 1, 2], [0, 0, 0, 0, 0, 0]])
    assert routed(rig.op, scores)[0].tolist() == [[1, 3, 5], [0, 1, 2]]
    assert_twin(rig, x, scores)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_make_their_row_nan_and_no_other(bad: float) -> None:
    rig = Rig("int8", 7, 2)
    x, scores = rig.rows(6)
    fine = rig.native(x, scores)
    scores[2, 5] = bad
    scores[4] = bad
    got = rig.native(x, scores)
    assert np.isnan(got[[2, 4]]).all()
    np.testing.assert_array_equal(got[[0, 1, 3, 5]], fine[[0, 1, 3, 5]])
    assert np.isnan(rig.reference(x, scores)[[2, 4]]).all()


def test_inputs_that_are_not_finite_spoil_their_row_alone() -> None:
    for kind in STORED:
        rig = Rig(kind, 5, 2)
        x, scores = rig.rows(4)
        fine = rig.native(x, scores)
        x[1] = np.nan
        got = rig.native(x, scores)
        assert not np.isfinite(got[1]).any()
        np.testing.assert_array_equal(got[[0, 2, 3]], fine[[0, 2, 3]])


@once
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc says which pages were read")
def test_what_is_read_are_the_experts_that_are_taken(tmp_path: Path) -> None:
    """In a file of weights a step of one row maps the pages of its experts, and some around them."""
    count, top_k, width, ffn = 16, 2, 256, 1024
    matrix = packing.packed_bytes("fp32", ffn, width)
    file = tmp_path / "weights"
    file.write_bytes(bytes(3 * count * matrix))
    with file.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(memory, np.uint8).reshape(count, 3, matrix)
    shapes = ((ffn, width), (ffn, width), (width, ffn))
    experts = [
        tuple(_native.Matrix("fp32", d, None, *s) for d, s in zip(e, shapes, strict=True)) for e in data
    ]
    program = _native.Program([width, count, width], 1, round_bf16=False)
    program.experts(0, 1, 2, *zip(*experts, strict=True), top_k, "of_all", "silu")
    scores = np.arange(count, dtype=np.float32)[None, :] % 7
    run([program], np.ones((1, width), np.float32), scores)
    taken = top_k * 3 * matrix
    assert 0.99 * taken <= _resident(file) <= 1.1 * taken  # the system may have evicted some


@once
def test_memory_does_not_depend_on_which_experts_rows_take() -> None:
    """It grows with the rows and with the experts per row: all rows on the same experts need no more than
    rows that spread."""
    rig = Rig("int8", 32, 4, width=1024, ffn=512)
    x, scores = rig.rows(MOST)
    spread = rig.scratch_bytes(x, scores)
    skewed = rig.scratch_bytes(x, np.tile(scores[:1], (MOST, 1)))
    rows = MOST * rig.op.top_k
    kept = rows * (rig.op.ffn + rig.op.x.width) * 4
    assert kept <= skewed <= spread <= 2 * kept


def _resident(file: Path) -> int:
    """Returns the bytes of a mapped file that the process has read."""
    sections = Path("/proc/self/smaps").read_text(encoding="utf-8").split(f"{file}\n")
    return sum(1024 * int(re.search(r"Rss:\s+(\d+) kB", section)[1]) for section in sections[1:])


def zeros(*shape: int) -> F32:
    return np.zeros(shape, np.float32)


def test_shapes_that_do_not_fit_are_refused() -> None:
    rig = Rig("fp32", 4, 2)

    def append(
        experts: Sequence[Sequence[object]] = (),
        top_k: int = 2,
        scoring: str = "of_all",
        widths: Sequence[int] = (96, 4, 96),
        biases: Sequence[F32] = (),
        **routing: object,
    ) -> None:
        program = _native.Program(list(widths), 4, round_bf16=False)
        matrices = zip(*(experts or rig.matrices), strict=True)
        program.experts(0, 1, 2, *matrices, top_k, scoring, "silu", biases=biases, **routing)

    append()
    (gate, up, down), *others = rig.matrices
    for arguments, message in (
        ({"experts": others}, "a score for each expert"),
        ({"experts": [(gate, up, up), *others]}, "differ in shape"),
        ({"experts": [(down, up, down), *others]}, "differ in shape|another width"),
        ({"top_k": 0}, "top_k must be 1 .. 4"),
        ({"top_k": 5}, "top_k must be 1 .. 4"),
        ({"scoring": "x"}, "no scoring 'x'"),
        ({"widths": (64, 4, 96)}, "another width than x"),
        ({"widths": (96, 4, 64)}, "64 wide"),
        ({"groups": (3, 1)}, "groups of experts must be equal"),
        ({"groups": (4, 1)}, "top_k experts of its groups"),
        ({"groups": (2, 3)}, "top_k experts of its groups"),
        ({"groups": (4, 2), "scoring": "sigmoid"}, "a group's worth is two"),
        ({"correction": zeros(3), "scoring": "sigmoid"}, "a correction for each expert"),
        ({"first": 1}, "a score for each expert"),
        ({"first": -1, "experts": others}, "a score for each expert"),
        ({"first": 1, "experts": others}, "96 wide"),
        ({"biases": [zeros(4, 104)]}, "of two matrices, or of three"),
        ({"biases": [zeros(4, 104), zeros(3, 104)]}, "a bias for each expert"),
        ({"biases": [zeros(4, 104), zeros(4, 104), zeros(4, 95)]}, "a bias for each expert"),
    ):
        with pytest.raises(ValueError, match=message):
            append(**arguments)


def test_gatherings_that_do_not_fit_are_refused() -> None:
    def append(group: Sequence[int] = (0, 1), bounds: Sequence[int] = (0, 3, 4), top_k: int = 2) -> None:
        program = _native.Program([64, 4, 32], 4, round_bf16=False)
        program.receive(0, 1)
        program.receive(1, 1)
        program.gather_slots(0, 1, 2, group, bounds, top_k, "of_all")

    append()
    for arguments, message in (
        ({"bounds": (0, 4)}, "from one bound to the next"),
        ({"bounds": (0, 3, 5)}, "from one bound to the next"),
        ({"bounds": (1, 3, 4)}, "from one bound to the next"),
        ({"bounds": (0, 5, 4)}, "from one bound to the next"),
        ({"top_k": 3}, "a place for each expert"),
        ({"top_k": 4}, "32 wide, the result 16"),
        ({"top_k": 5}, "top_k must be 1 .. 4"),
    ):
        with pytest.raises(ValueError, match=message):
            append(**arguments)
