"""names.tsv has a row for each name of the code, and no other; a row that was changed says why."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron import ops
from corepipe.neuron.chips.hardware import ENGINES
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import Op
from corepipe.neuron.timing.cost import LimitingResource
from corepipe.neuron.values import SOURCE, TOKENS, WANTED, WeightRole
from tests.digest.check import one_a_family, part
from tests.digest.models import source
from tests.digest.names import neutral, rows


def kinds_of_op() -> set[type[Op]]:
    return {kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, Op)} - {Op}


def axes() -> set[str]:
    """Returns every axis that a model of one of the families has."""
    graphs = [architecture(source(name)).graph(FORMATS["bf16"]) for name in one_a_family("programs")]
    made = {op.out.axis.name for graph in graphs for op in graph.ops}
    return made | {axis.name for graph in graphs for spec in graph.weights() for axis in spec.axes}


def ours() -> set[tuple[str, str]]:
    """Returns every name of the code that has another one in the digest."""
    named = {("op", kind.__name__) for kind in kinds_of_op()}
    for kind in kinds_of_op():
        named |= {
            ("field", f"{kind.__name__}.{f.name}") for f in fields(kind) if f.name not in ("layer", "out")
        }
    named |= {("engine", engine) for engine in ENGINES}
    named |= {("axis", axis) for axis in axes()}
    named |= {("rows", rows.name) for rows in (TOKENS, WANTED, SOURCE)}
    enums = {
        "role": WeightRole,
        "function": ops.Function,
        "found_by": ops.RowIndex,
        "scoring": ops.Scoring,
        "bound": LimitingResource,
    }
    return named | {(kind, member.value) for kind, members in enums.items() for member in members}


def test_every_name_of_the_code_has_one_row() -> None:
    assert Counter((row.kind, row.ours) for row in rows()) == Counter(ours())


def test_no_two_names_become_one() -> None:
    """Fields are unique within their Op."""
    counted = Counter(
        (row.kind, row.ours.partition(".")[0] if row.kind == "field" else "", row.neutral) for row in rows()
    )
    assert max(counted.values()) == 1


def test_a_name_without_a_row_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"names\.tsv has no row for op Sort"):
        neutral("op", "Sort")


def test_what_was_renamed_since_has_a_reason() -> None:
    frozen = {tuple(row) for row in part("programs").names}
    if not frozen:
        pytest.skip("nothing is frozen yet")
    unexplained = [
        row for row in rows() if (row.kind, row.ours, row.neutral) not in frozen and not row.reason
    ]
    assert unexplained == []
