"""Variables that clients give to a chat template, and their checks: for HTTP and `LLM` alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corepipe.errors import UserError, shown
from corepipe.models.text.special_tokens import NAMES

FIELD = "chat_template_kwargs"
MOST = 64
"""The most variables."""
MOST_VALUES = 4_096
"""The most values in all of them, at any depth."""
DEEPEST = 16

_VALUES = (str, int, float, Mapping, list, tuple, type(None))

RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("chat_template", "tokenize", *NAMES, "raise_exception", "strftime_now", "self"),
    }
)
"""Names that clients may not set: the server sets them, or they have a field of their own."""


def begins_turn(asked: bool | None, continues: bool) -> bool:
    """Tells whether a prompt ends where the assistant's turn begins.

    asked: what the request asks for; None: a new turn unless it `continues` the last message.  Raises
    UserError where both are asked for.
    """
    if asked and continues:
        raise UserError(
            "continue_final_message continues the last message, and add_generation_prompt begins another: "
            "send only one of them.",
            "continue_final_message",
        )
    return not continues if asked is None else asked


def checked_variables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy.  Raises UserError, which names the variable, for what templates cannot be given."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UserError(f"{FIELD} must be an object of values by name, not {shown(repr(given))}", FIELD)
    if len(given) > MOST:
        raise UserError(f"{FIELD} has more than {MOST} variables", FIELD)
    for name in given:
        if not name.isidentifier():
            raise UserError(f"{FIELD}: {shown(name)} is not a valid variable name", FIELD)
        if name in RESERVED:
            raise UserError(f"{FIELD}: {name} cannot be set by requests", f"{FIELD}.{name}")
    _check_values(list(given.values()))
    return dict(given)


def _check_values(level: list[Any]) -> None:
    """Checks the values level by level, so that no depth is too great.  Raises UserError."""
    rest = MOST_VALUES
    for _ in range(DEEPEST):
        rest -= len(level)
        if rest < 0:
            raise UserError(f"{FIELD} holds more than {MOST_VALUES} values", FIELD)
        for one in level:
            if not isinstance(one, _VALUES):
                raise UserError(f"{FIELD} holds {shown(repr(one))}, which is not JSON", FIELD)
        if any(isinstance(one, int) and not -(2**63) <= one < 2**64 for one in level):
            raise UserError(f"{FIELD} holds an integer of more than 64 bits", FIELD)
        level = [inner for one in level for inner in _inside(one)]
    if level:
        raise UserError(f"{FIELD} is nested more than {DEEPEST} levels deep", FIELD)


def _inside(value: object) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
