"""Changes of Python's source: cosmic-ray's operators, used as a library, and some of our own.

Left out: annotations, decorators, texts with values in them, asserts, `__all__`, `__repr__`, log lines, what
only type checkers read, options of dataclasses, and numbers so large that one more or less is no fault.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.number_replacer import NumberReplacer
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import ExprStmt, Name, Number, PythonNode

from tests.planted.candidate import Candidate

BINARY = (
    "Add_Sub", "Sub_Add", "Mul_FloorDiv", "Mul_Add", "Div_Mul", "FloorDiv_Mul", "FloorDiv_Div",
    "Mod_FloorDiv", "LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitOr",
)  # fmt: skip
COMPARED = (
    "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
    "Is_IsNot", "IsNot_Is",
)  # fmt: skip
OTHERS = (
    "ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "AddNot", "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop",
)  # fmt: skip
"""One or two of cosmic-ray's operators for each thing that can be replaced: it has eleven for a plus, most of
which any test finds."""

SMALL = 100
"""Numbers from here on are sizes and limits of time, of which one more or less is no fault."""

SYMMETRIC = {"min", "max", "gcd", "isinstance"}
"""Functions that give the same with their arguments swapped, or fail at once."""

SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "append": "remove", "popleft": "pop"}


class DropStatement(Operator):  # type: ignore[misc]
    """Removes a call whose value nobody reads, or an assignment to what others read."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if _is_statement(node) and (_is_call(node) or _assigns_beyond(node)):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return Name(f"{node.get_first_leaf().prefix}pass", node.start_pos)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("a.b(c)", "pass"), Example("a.b = c", "pass"), Example("a += 1", "pass"))


class KeptPlace(NumberReplacer):  # type: ignore[misc]
    """Changes a number by one, and leaves the blanks and comments before it, which cosmic-ray's drops."""

    def mutate(self, node: Any, index: int) -> Any:
        return Number(super().mutate(node, index).value.strip(), node.start_pos, node.prefix)


class SwapArguments(Operator):  # type: ignore[misc]
    """Swaps the first two arguments of a call, where both go by their places."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "arglist" and node.parent.type == "trailer" and _called(node) not in SYMMETRIC:
            first, second = node.children[0], node.children[2]
            in_a_line = first.start_pos[0] == second.end_pos[0]
            if in_a_line and "argument" not in {first.type, second.type} and not _is_raised(node):
                yield first.start_pos, second.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first, comma, second = node.children[:3]
        texts = [one.get_code(include_prefix=False) for one in (first, second)]
        node.children[:3] = [Name(texts[1], first.start_pos), comma, Name(f" {texts[0]}", second.start_pos)]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("f(a, b)", "f(b, a)"),)


class SwapNames(Operator):  # type: ignore[misc]
    """Swaps functions with their opposites."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(node, Name) and node.value in SWAPPED and _is_called(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return Name(f"{node.prefix}{SWAPPED[node.value]}", node.start_pos)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("min(a)", "max(a)"),)


def _is_statement(node: Any) -> bool:
    return node.parent is not None and node.parent.type == "simple_stmt" and node is node.parent.children[0]


def _function(node: Any) -> str:
    around = node.search_ancestor("funcdef")
    return "" if around is None else str(around.name.value)


def _is_call(node: Any) -> bool:
    return isinstance(node, PythonNode) and node.type == "atom_expr" and node.children[-1].children[0] == "("


def _assigns_beyond(node: Any) -> bool:
    """Assigns to an attribute or an item, or changes a variable.  In `__init__` any test tells: not there."""
    if not isinstance(node, ExprStmt) or _function(node) == "__init__":
        return False
    target, then = node.children[0], node.children[1]
    changes = then.type == "operator" and then.value.endswith("=") and then.value != "="
    return bool(changes or (target.type in {"atom_expr", "power"} and then == "="))


def _called(arguments: Any) -> str:
    """The name before a call's arguments."""
    return str(arguments.parent.get_previous_leaf().value)


def _is_raised(node: Any) -> bool:
    """True for a part of a `raise`: texts for a user."""
    return node.search_ancestor("raise_stmt") is not None


def _is_called(node: Any) -> bool:
    after = node.get_next_leaf()
    return after is not None and after.value == "(" and node.parent.type in {"atom_expr", "trailer"}


@cache
def operators() -> dict[str, Operator]:
    """By name, in a fixed order."""
    names = [
        *(f"ReplaceBinaryOperator_{one}" for one in BINARY),
        *(f"ReplaceComparisonOperator_{one}" for one in COMPARED),
        *OTHERS,
    ]
    ours = {kind.__name__: kind() for kind in (DropStatement, SwapArguments, SwapNames)}
    return {name: get_operator(f"core/{name}")() for name in names} | ours | {"NumberReplacer": KeptPlace()}


def candidates(text: str) -> Iterator[Candidate]:
    """All changes that can be made in a file."""
    left_out = list(_left_out(ast.parse(text)))
    statements = _statements(text)
    counts: Counter[str] = Counter()
    for node in ast_nodes(get_ast(text)):
        for name, operator in operators().items():
            for begin, end in operator.mutation_positions(node):
                number = counts[name]
                counts[name] += 1
                line = begin[0]
                if not _is_left_out(begin, end, left_out) and not _is_large(node):
                    yield Candidate(name, number, line, statements.get(line, range(line, line + 1)))


def mutated(text: str, one: Candidate) -> str:
    """The file with one change."""
    made = mutate_code(text, operators()[one.operator], one.number)
    assert made is not None, one
    return str(made)


def _is_large(node: Any) -> bool:
    return isinstance(node, Number) and abs(ast.literal_eval(node.value)) >= SMALL


Place = tuple[int, int]


def _is_left_out(begin: Place, end: Place, left_out: list[tuple[Place, Place]]) -> bool:
    return any(first <= begin and end <= last for first, last in left_out)


def _left_out(tree: ast.AST) -> Iterator[tuple[Place, Place]]:
    """The first and last positions of parts that are left unchanged."""
    for node in ast.walk(tree):
        for part in _parts_left_out(node):
            if isinstance(part, ast.expr | ast.stmt):
                last = part.end_lineno or part.lineno, part.end_col_offset or 0
                yield (part.lineno, part.col_offset), last


def _parts_left_out(node: ast.AST) -> list[Any]:
    match node:
        case ast.FunctionDef(name="__repr__"):
            return [node]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [*node.decorator_list, node.returns]
        case ast.ClassDef():
            return [node] if _is_protocol(node) else [*node.decorator_list, *node.bases]
        case ast.arg() | ast.AnnAssign():
            return [node.annotation]
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return [node]
        case ast.Assert() | ast.JoinedStr():
            return [node]
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return [node]
        case ast.keyword(arg="init" | "repr" | "compare" | "frozen" | "slots" | "kw_only"):
            return [node.value]
        case ast.Call() if _is_log(node):
            return [node]
    return []


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def _is_log(node: ast.Call) -> bool:
    called = node.func
    levels = {"debug", "info", "warning", "error", "exception"}
    return isinstance(called, ast.Attribute) and called.attr in levels


@cache
def _statements(text: str) -> dict[int, range]:
    """For each line, the lines of the smallest statement, or head of one, that it is in."""
    found: dict[int, range] = {}
    for node in ast.walk(ast.parse(text)):  # outer ones come before inner ones
        if isinstance(node, ast.stmt):
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if body and isinstance(body, list):
                last = max(node.lineno, body[0].lineno - 1)
            found |= dict.fromkeys(range(node.lineno, last + 1), range(node.lineno, last + 1))
    return found
