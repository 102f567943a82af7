"""JSON values of bodies: their conversion to types, and those that are accepted without effect.

Numbers such as `8.0` and `1e1` count as integers.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, inspect

Wanted = dict[type[inspect.Type], inspect.Type]
"""The types that a value may have, by their kinds."""


def convert(value: object, kind: Any) -> Any:  # noqa: ANN401 -- as in msgspec
    """Converts a JSON value to a type; numbers without a fraction are accepted as integers.

    Raises msgspec.ValidationError.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return msgspec.convert(_whole(value, _wanted(inspect.type_info(kind))), kind)


def as_integer(value: object) -> object:
    """Returns a number without a fraction as an integer, and anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole(value: object, wanted: Wanted) -> object:
    if isinstance(value, float):
        return as_integer(value) if _integers(wanted) else value
    if isinstance(value, list) and isinstance(several := wanted.get(inspect.ListType), inspect.ListType):
        return _each_whole(value, _wanted(several.item_type))
    if not isinstance(value, dict):
        return value
    if isinstance(named := wanted.get(inspect.StructType), inspect.StructType):
        kinds = {field.encode_name: field.type for field in named.fields}
        return {key: _whole(one, _wanted(kinds[key])) if key in kinds else one for key, one in value.items()}
    if isinstance(mapped := wanted.get(inspect.DictType), inspect.DictType):
        inner = _wanted(mapped.value_type)
        return {key: _whole(one, inner) for key, one in value.items()}
    return value


def _each_whole(values: list[Any], wanted: Wanted) -> list[Any]:
    """Converts the numbers of a list in one loop, without a call for each: there may be very many."""
    if _integers(wanted):
        values = [int(one) if type(one) is float and one.is_integer() else one for one in values]
    return [_whole(one, wanted) if type(one) in (list, dict) else one for one in values]


def _wanted(kind: inspect.Type) -> Wanted:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if not isinstance(kind, inspect.UnionType):
        return {type(kind): kind}
    return {name: one for inner in kind.types for name, one in _wanted(inner).items()}


def _integers(wanted: Wanted) -> bool:
    return inspect.IntType in wanted and inspect.FloatType not in wanted


ShortText = Annotated[str, Meta(max_length=512)]


class Neutral(NamedTuple):
    """The accepted values of a parameter without effect, besides null: `values`, or anything of `type`."""

    values: tuple[Any, ...] = ()
    type: Any = None

    def accepts(self, value: object) -> bool:
        if any(isinstance(value, bool) == isinstance(one, bool) and value == one for one in self.values):
            return True
        if self.type is None:
            return False
        try:
            convert(value, self.type)
        except msgspec.ValidationError:
            return False
        return True
