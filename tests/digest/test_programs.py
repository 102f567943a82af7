"""The Programs are those that were frozen, to the last range; today's reader overlooks no field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from enum import Enum
from functools import cache
from typing import Any

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron import ops
from corepipe.neuron.axes import AxisShard, HeadLayout
from corepipe.neuron.compile.compiler import compile_graph
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Clamp, GatherSlots, L2Norm, Op, SequencePooling, convolution, scans
from corepipe.neuron.values import RopeSpec, Value, WeightSpec
from tests.digest import check, programs
from tests.digest.compare import Comparison
from tests.digest.forms import Blocks, canonical
from tests.digest.parts import Part

MODEL = "qwen3-0.6b"
REPLICA = {"bf16": {"format": "bf16", "pipeline": 2, "tensor": 2}}


@pytest.mark.parametrize("model", check.of_each_family("programs"))
def test_one_model_of_each_family_is_as_it_was(model: str) -> None:
    check.check_some("programs", model)


@pytest.mark.digest
@pytest.mark.parametrize("number", range(check.SLICES))
def test_all_are_as_they_were(number: int) -> None:
    check.check_slice("programs", number)


@cache
def compiled(model: str, placement: Placement) -> tuple[Program, ...]:
    return compile_graph(architecture(model).graph(FORMATS["bf16"]), placement)


def examples() -> Iterator[tuple[Program, int]]:
    """Returns a Program with each kind of Op, and its place in it; with as many of its fields set as
    possible."""
    sources = {
        "gpt-oss-20b": Placement(2, 2),
        "llama-4-scout": Placement(),
        "t5-small": Placement(),
        "bloom-560m": Placement(),
        "gemma-2-2b": Placement(),
        "mistral-7b": Placement(),
        "qwen2.5-0.5b": Placement(),
        "deepseek-v2-lite": Placement(),
        "granite-3.0-2b": Placement(),
        "vit-base": Placement(),
        "bert-base": Placement(),
        "opt-125m": Placement(),
        "mixtral-8x7b": Placement(),
    }
    found: dict[tuple[str, str], tuple[Program, int]] = {}
    for model, placement in sources.items():
        for program in compiled(model, placement):
            for number, op in enumerate(program.ops):
                for field in fields(op):
                    if getattr(op, field.name) not in (None, False, ()):
                        found.setdefault((type(op).__name__, field.name), (program, number))
    yield from {(id(program), number): (program, number) for program, number in found.values()}.values()


def ops_text(program: Program, changed: dict[int, Op]) -> str:
    """Returns the neutral form of a Program with some Ops changed."""
    blocks = Blocks()
    reader = programs._Ops(program, blocks, cuts := {})
    read = [(op.layer, reader.read(i, changed.get(i, op))) for i, op in enumerate(program.ops)]
    return canonical([read, cuts, blocks.rotations])


def altered(part: Any, program: Program) -> Any:
    """Returns another value that the field could have."""
    match part:
        case Value():
            return part._replace(axis=part.axis._replace(width=part.width + 1))
        case WeightSpec():
            return None
        case HeadLayout():
            return replace(part, head_dim=part.head_dim + 1)
        case RopeSpec():
            return replace(part, attention_factor=part.attention_factor + 1)
        case bool():
            return not part
        case Enum():
            return next(other for other in type(part) if other is not part)
        case tuple():
            return part[1:]
        case int() | float():
            return part + 1
    raise TypeError(part)


def test_each_kind_of_op_is_among_the_examples() -> None:
    """Except those on images, of vectors, of states, of divided experts and Clamp, which came later."""
    kinds = {kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, Op)} - {Op}
    later = {convolution.__name__, scans.__name__}
    known = {kind for kind in kinds if kind.__module__ not in later} - {
        Clamp,
        GatherSlots,
        L2Norm,
        SequencePooling,
    }
    assert {type(program.ops[number]) for program, number in examples()} == known


def test_no_field_of_any_op_is_overlooked() -> None:
    """Each field is changed, one at a time; a value that is read is replaced by another one."""
    seen: set[tuple[str, str]] = set()
    for program, number in examples():
        op, before = program.ops[number], ops_text(program, {})
        for field in fields(op):
            part, what = getattr(op, field.name), (type(op).__name__, field.name)
            if part in (None, False, ()) or field.name == "layer" or what in seen:
                continue
            if isinstance(part, Value) and field.name != "out":
                other = program.ops[0].out if part != program.ops[0].out else None
                if other is None:
                    continue
                change = replace(op, **{field.name: other})
            else:
                change = replace(op, **{field.name: altered(part, program)})
            assert ops_text(program, {number: change}) != before, what
            seen.add(what)
    assert len(seen) >= 70  # of the 79 rows of fields in names.tsv and the 20 `out`s


def frozen(replicas: dict[str, Any] = REPLICA) -> Comparison:
    part = Part("programs", 1, "", {MODEL: canonical(programs.read(MODEL, replicas))})
    return Comparison(part, check.read_programs, ())


def change_program(monkeypatch: pytest.MonkeyPatch, core: int, **changes: object) -> None:
    """Makes the compiler return a different Program for one core from now on."""

    def compile_otherwise(*args: Any) -> tuple[Program, ...]:
        made = list(compile_graph(*args))
        made[core] = replace(made[core], **changes)
        return tuple(made)

    monkeypatch.setattr(programs, "compile_graph", compile_otherwise)


def test_a_changed_field_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = frozen()
    assert comparison.difference(MODEL) is None
    program = compiled(MODEL, Placement(2, 2))[2]
    where, norm = next((i, op) for i, op in enumerate(program.ops) if isinstance(op, ops.RMSNorm))
    changed = (*program.ops[:where], replace(norm, eps=1e-5), *program.ops[where + 1 :])
    change_program(monkeypatch, core=2, ops=changed)
    layer = program.layers.start
    assert comparison.difference(MODEL) == (
        f"programs: {MODEL}: replicas/bf16/cores/2/layers/{layer}/1 rms_norm/epsilon: "
        "1e-06 was frozen, 1e-05 is now"
    )


def test_a_moved_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = frozen()
    program = compiled(MODEL, Placement(2, 2))[1]
    name = next(name for name in program.shards if name.endswith("down_proj.weight"))
    whole, cut = program.shards[name].axes
    start, length = cut.ranges[0]
    moved = replace(program.shards[name], axes=(whole, AxisShard(((start - 64, length),))))
    change_program(monkeypatch, core=1, shards={**program.shards, name: moved})
    found = comparison.difference(MODEL)
    assert found is not None
    assert "/cores/1/layers/0/" in found
    assert f"linear/weight/dims/1/ranges/0/0: {start} was frozen, {start - 64} is now" in found


def test_an_op_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = frozen()
    program = compiled(MODEL, Placement(2, 2))[3]
    change_program(monkeypatch, core=3, ops=program.ops[:-1])
    found = comparison.difference(MODEL)
    assert found is not None
    assert " all_gather: " in found
    assert found.endswith(" was frozen, nothing is now")
