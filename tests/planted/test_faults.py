"""Faults are the same each time, differ from the source in one place, and leave the tree as it was."""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from itertools import islice

import pytest

pytest.importorskip("cosmic_ray")

from tests.planted import areas, faults, native_faults, python_faults, table
from tests.planted.candidate import Candidate

PYTHON = '''\
"""Docstring of 3 words."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 3 + 4

__all__ = ["f"] + ["C"]


@dataclass(order=True)
class C:
    size: int | None = 4

    def __repr__(self) -> str:
        return "C" * (1 + 2)


def f(a: int | str, b: bool) -> int | None:
    assert a != 5
    log.warning("%d", a + 1)
    if a < 7 and b:
        return g(b, f"{a + 1}") * 65536
    a.b += min(a, 2)
    return None
'''

LEFT_ALONE = {"Docstring", "LIMIT", "__all__", "order=True", '"C" *', "assert", "log.", "int | str"}

NATIVE = """\
#include <cstdio>  // 1 < 2
#if defined(__AVX512F__)
int other(int n) { return n + 1; }
#endif
template <int N>
void f(float* x, int n) {
  for (int i = 0; i < n; ++i) {  // a < b
    x[i] = x[i] * 2.0f;
    const float y = g("a < 3", n - 1);
    total += i;
    const int m = std::min(n, 4);
  }
  done(n);
}
"""


def every(kind: object, text: str) -> list[tuple[Candidate, str]]:
    """All changes of a text, and what it is with each."""
    return [(one, kind.mutated(text, one)) for one in kind.candidates(text)]


def differing(old: str, new: str) -> list[int]:
    """Lines of the old text, from 1, that the new one has not."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    return [
        line + 1
        for tag, begin, end, *_ in matcher.get_opcodes()
        if tag != "equal"
        for line in range(begin, end)
    ]


def test_each_change_of_python_is_python_and_in_one_place() -> None:
    changes = every(python_faults, PYTHON)
    assert len({text for _, text in changes}) == len(changes) > 10
    for one, text in changes:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(PYTHON)), one
        assert differing(PYTHON, text) == [one.line], one


def test_what_no_test_can_tell_is_left_alone() -> None:
    lines = PYTHON.splitlines()
    changed = {lines[one.line - 1] for one in python_faults.candidates(PYTHON)}
    assert not [(line, part) for line in changed for part in LEFT_ALONE - {"int | str"} if part in line]
    assert all("int | str" in text for _, text in every(python_faults, PYTHON))
    assert not any("65537" in text or "65535" in text for _, text in every(python_faults, PYTHON))


def test_python_has_each_of_our_own_operators() -> None:
    operators = {one.operator for one in python_faults.candidates(PYTHON)}
    assert {"DropStatement", "SwapNames", "SwapArguments", "NumberReplacer", "AddNot"} <= operators


@pytest.mark.parametrize("name", ["DropStatement", "SwapNames", "SwapArguments"])
def test_an_example_is_what_the_operator_makes(name: str) -> None:
    operator = python_faults.operators()[name]
    for example in operator.examples():
        made = python_faults.mutated(f"{example.pre_mutation_code}\n", Candidate(name, 0, 1, range(1, 2)))
        assert made == f"{example.post_mutation_code}\n"


def test_each_change_of_cpp_is_in_one_line_of_code() -> None:
    changes = every(native_faults, NATIVE)
    lines = NATIVE.splitlines()
    begin = {lines[one.line - 1].strip()[:5] for one, _ in changes}
    assert begin == {"for (", "x[i] ", "const", "total", "done("}
    for one, text in changes:
        assert differing(NATIVE, text) == [one.line], one
        assert '"a < 3"' in text
        assert "// a < b" in text
    assert {"less", "times", "min", "drop", "one_more", "add"} <= {one.operator for one, _ in changes}


def test_the_same_seed_gives_the_same_faults_and_another_gives_others() -> None:
    area = areas.area_of("caches")

    def keys(seed: int) -> list[str]:
        return [str(fault) for fault in islice(faults.of_area(area, seed), 10)]

    assert keys(0) == keys(0)
    assert not set(keys(0)) & set(keys(1))


def test_a_change_elsewhere_in_a_file_keeps_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    area = areas.area_of("caches")
    before = Counter(fault.key for fault in islice(faults.of_area(area, 0), 10))
    monkeypatch.setattr(faults, "text_of", lambda path: f"import os\n\n\n{areas.text_of(path)}")
    assert Counter(fault.key for fault in islice(faults.of_area(area, 0), 10)) == before


def test_choosing_faults_leaves_the_tree_as_it_was() -> None:
    area = areas.area_of(areas.NATIVE)
    sources = {path: areas.text_of(path) for path in area.sources()}
    for fault in islice(faults.of_area(area, 0), 5):
        assert fault.whole == sources[fault.path] != fault.text
    assert {path: areas.text_of(path) for path in area.sources()} == sources


def test_shares_come_to_what_was_asked_for() -> None:
    assert areas.shares(120) == {area.name: area.share for area in areas.AREAS}
    assert sum(areas.shares(37).values()) == 37


def test_a_table_is_read_as_it_was_written_and_the_share_is_of_what_was_found(tmp_path) -> None:
    rows = [
        table.Row(n, f"{n:08x}", "scheduler", "a.py", n, 'x = "\t"'.expandtabs(), "pass", by, "-", 1)
        for n, by in enumerate([table.SHORT, table.SHORT, table.LONG, table.NONE, table.UNTRIED], 1)
    ]
    table.write(reversed(rows), tmp_path / "table.tsv")
    assert table.read(tmp_path / "table.tsv") == rows
    assert table.share(rows) == 2 / 3
