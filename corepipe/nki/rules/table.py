"""The table of all rules."""

from __future__ import annotations

from collections.abc import Mapping

from corepipe.nki.rules import device, language
from corepipe.nki.rules.rule import Rule

GROUPS: Mapping[str, tuple[Rule, ...]] = {
    "Operands": device.TILES,
    "Products and transposes": device.PRODUCTS,
    "Instructions of Vector, Scalar and GpSimd": device.ELEMENTWISE,
    "Calls": language.CALLS,
    "Memory": language.MEMORY,
    "Loops": language.TURNS,
    "Values, outputs and imports": language.VALUES,
}

RULES: Mapping[str, Rule] = {rule.name: rule for group in GROUPS.values() for rule in group}
"""All rules, by name."""
