"""Writes what docs/nki.md lists of the language and of its rules: `python -m tests.nki.api_page`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from corepipe import nki
from corepipe.nki.dialects.current.modules import REFUSED
from corepipe.nki.rules.rule import BOTH, Rule
from corepipe.nki.rules.table import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "nki.md"

MODULES = {
    "neuronxcc.nki": "legacy",
    "neuronxcc.nki.language": "legacy, `nl`",
    "neuronxcc.nki.isa": "legacy, `nisa`",
    "nki": "current",
    "nki.language": "current, `nl`",
    "nki.isa": "current, `nisa`",
}
"""Modules that kernels import, as the page calls them."""


def page(text: str) -> str:
    """Returns docs/nki.md with the rules, and with the names that the installed modules have now."""
    text = with_part(text, "rules", _rules())
    return with_part(text, "names", ["| module | names |", "|---|---|", *_names()])


def with_part(text: str, name: str, lines: Iterable[str]) -> str:
    """Returns the page with other lines between a mark of this name and the end of its part."""
    marks = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    return re.sub(marks, lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.DOTALL)


def _rules() -> Iterator[str]:
    yield "| rule | what it says | if broken | source |"
    yield "|---|---|---|---|"
    for group, rules in GROUPS.items():
        yield f"| **{group}** | | | |"
        yield from (_rule(rule) for rule in rules)


def _rule(rule: Rule) -> str:
    says = rule.says.replace("{limit}", _limits(rule)).replace("|", "\\|")
    only = "" if rule.dialects == BOTH else f"; {', '.join(rule.dialects)} only"
    some = "" if len(rule.limits) == 3 else f" ({', '.join(rule.limits)})"
    return f"| `{rule.name}` | {says}{some} | {rule.kind}{only} | {rule.source} |"


def _limits(rule: Rule) -> str:
    """Returns a rule's number, or its numbers by generation."""
    numbers = [f"{n:,}" for n in rule.limits.values()]
    return numbers[0] if len({*numbers}) == 1 else " / ".join(numbers)


def _names() -> Iterator[str]:
    with nki.installed():
        for name, shown in MODULES.items():
            there = [n for n in names(importlib.import_module(name)) if name != "nki.isa" or n not in REFUSED]
            yield f"| `{name}` ({shown}) | {', '.join(f'`{n}`' for n in there)} |"
    yield f"| `nki.isa`, refused when they are called | {', '.join(f'`{n}`' for n in sorted(REFUSED))} |"


def names(module: ModuleType) -> list[str]:
    """Returns the public names of a module that kernels call or pass, other modules left out."""
    return sorted(
        n for n in dir(module) if not n.startswith("_") and not isinstance(getattr(module, n), ModuleType)
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
