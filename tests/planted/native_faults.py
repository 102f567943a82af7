"""Changes of the kernels' source, line by line: tokens are replaced, or a statement is left out.

The compiler is the judge of what is still C++.  Comments, texts, and all that stands under a condition of the
preprocessor (other ISAs) are left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from tests.planted.candidate import Candidate

TOKENS: dict[str, tuple[str, str]] = {
    "less": (r" < (?=\S)", " <= "),
    "less_or_equal": (r" <= ", " < "),
    "more": (r" > (?=\S)", " >= "),
    "more_or_equal": (r" >= ", " > "),
    "equal": (r" == ", " != "),
    "unequal": (r" != ", " == "),
    "plus": (r" \+ ", " - "),
    "minus": (r" - ", " + "),
    "times": (r" \* ", " + "),
    "and": (r" && ", " || "),
    "or": (r" \|\| ", " && "),
    "min": (r"\bstd::min\b", "std::max"),
    "max": (r"\bstd::max\b", "std::min"),
    "true": (r"\btrue\b", "false"),
    "false": (r"\bfalse\b", "true"),
    "continue": (r"\bcontinue;", "break;"),
    "add": (r" \+= ", " -= "),
}
NUMBERS = {"one_more": 1, "one_less": -1}
NUMBER = re.compile(r"(?<![\w.])\d{1,2}(?![\w.'])")
DROPPED = re.compile(r"^\s*(?!(?:return|using|throw|typedef|static\w*|break|continue|delete)\b)"
                     r"[\w.\->\[\]():]+(?: [-+*|&]?= .+|\(.*\));$")  # fmt: skip
"""A call or an assignment that is a line of its own; what declares has two words before either."""

LEFT_ALONE = re.compile(r"^\s*(?:#|template\b|using\b|namespace\b|static_assert\b|constexpr\b|CP_)")


def candidates(text: str) -> Iterator[Candidate]:
    """All changes that can be made in a file."""
    counts: Counter[str] = Counter()
    for line, code in _code(text):
        for operator, (pattern, _) in TOKENS.items():
            for _found in re.finditer(pattern, code):
                yield _candidate(operator, counts, line)
        for operator in NUMBERS:
            for _found in NUMBER.finditer(code):
                yield _candidate(operator, counts, line)
        if DROPPED.match(code):
            yield _candidate("drop", counts, line)


def _candidate(operator: str, counts: Counter[str], line: int) -> Candidate:
    counts[operator] += 1
    return Candidate(operator, counts[operator] - 1, line, range(line, line + 1))


def mutated(text: str, one: Candidate) -> str:
    """The file with one change."""
    lines = text.splitlines(keepends=True)
    seen = 0
    for line, code in _code(text):
        found = list(_matches(one.operator, code))
        if one.number < seen + len(found):
            begin, end, new = found[one.number - seen]
            old = lines[line - 1]
            lines[line - 1] = old[:begin] + new + old[end:]
            return "".join(lines)
        seen += len(found)
    raise ValueError(one)


def _matches(operator: str, code: str) -> Iterator[tuple[int, int, str]]:
    """The places of a line that an operator can change, and the replacements."""
    if operator == "drop":
        if DROPPED.match(code):
            yield len(code) - len(code.lstrip()), len(code), ";"
    elif operator in NUMBERS:
        for found in NUMBER.finditer(code):
            yield *found.span(), str(int(found[0]) + NUMBERS[operator])
    else:
        pattern, new = TOKENS[operator]
        for found in re.finditer(pattern, code):
            yield *found.span(), new


@cache
def _code(text: str) -> tuple[tuple[int, str], ...]:
    """Lines with code, by number: comments and texts are blank, and columns are where they were."""
    blank = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', _blanked, text, flags=re.DOTALL)
    found, depth, goes_on = [], 0, False
    for number, line in enumerate(blank.split("\n"), 1):
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif not (depth or goes_on or LEFT_ALONE.match(line)):
            found.append((number, line.rstrip()))
        goes_on = line.rstrip().endswith("\\")
    return tuple(found)


def _blanked(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])
