"""Broken rules: the error or the finding, in words and with the kernel's line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corepipe.nki.core.errors import KernelError, Site
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.core.tensors import View
from corepipe.nki.rules.rule import CURRENT, LEGACY, Rule
from corepipe.nki.rules.table import RULES

Views = Sequence[View]
Details = Mapping[str, Any]
Engines = Sequence[Engine]

CORES = {"v2": "NeuronCore-v2", "v3": "NeuronCore-v3", "v4": "NeuronCore-v4"}


def holds(recorder: Recorder, name: str) -> bool:
    """Tells whether a run's generation and dialect have a rule."""
    rule = RULES[name]
    return recorder.generation in rule.limits and (LEGACY if recorder.legacy else CURRENT) in rule.dialects


def broken(
    recorder: Recorder, name: str, op: str = "", view: View | None = None, **fields: Any
) -> KernelError:
    """Returns the error of a broken rule, to be raised."""
    rule = RULES[name]
    return recorder.refuse(name, _words(recorder, rule, {"op": op, "operand": described(view), **fields}))


def broken_at(recorder: Recorder, name: str, site: Site, **fields: Any) -> KernelError:
    """Returns the error of a rule that an earlier line broke."""
    return KernelError(_words(recorder, RULES[name], fields), site, name)


def found(recorder: Recorder, name: str, site: Site | None = None, **fields: Any) -> None:
    """Notes a finding, at a line or at the kernel's current one, where the dialect and generation have it."""
    if holds(recorder, name):
        recorder.find(name, _words(recorder, RULES[name], fields), site)


def _words(recorder: Recorder, rule: Rule, fields: dict[str, Any]) -> str:
    known = {"limit": rule.limits[recorder.generation], **fields}
    op = f"{fields['op']}: " if fields.get("op") else ""
    saw, says, do = (text.format(**known) for text in (rule.saw, rule.says, rule.do))
    return f"{op}{saw}; on {CORES[recorder.generation]} {says}: {do}"


def described(view: View | None) -> str:
    """Returns what names a tile in a message: its tensor, if that has a name, and its shape."""
    if view is None:
        return ""
    name = view.buffer.root.name or f"the tile of {view.space.upper()}"
    return f"{name}[{', '.join(str(n) for n in view.shape)}]"
