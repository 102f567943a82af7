"""The fields of a body that constrain its answer: `response_format`, `structured_outputs`, `guided_...`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corepipe.structured.constraints import (
    MAX_NAME,
    Constraint,
    ConstraintError,
    StructuredOutputsParams,
    check_size,
    constraint_of,
    json_text,
    schema_text,
)

TAG = ("format", "structures", "triggers")
"""The fields of `ResponseFormat` that belong to a structural tag."""


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    """OpenAI's `json_schema`; the schema is enforced whatever `strict` says."""

    schema: Annotated[dict[str, Any], Meta(description="a JSON schema")]
    name: Annotated[str, Meta(max_length=MAX_NAME, description="named in errors")] = ""


class ResponseFormat(msgspec.Struct, frozen=True):
    """OpenAI's `response_format`, llama.cpp's `schema` beside `type`, and vLLM's `structural_tag`."""

    type: Annotated[
        Literal["text", "json_object", "json_schema", "structural_tag"], Meta(description="the answer's form")
    ]
    json_schema: Annotated[JsonSchemaFormat | None, Meta(description="with type `json_schema`")] = None
    schema: Annotated[
        dict[str, Any] | None, Meta(description="llama.cpp's form: in place of `json_schema`")
    ] = None
    format: Annotated[dict[str, Any] | None, Meta(description="with type `structural_tag`")] = None
    structures: Annotated[
        list[dict[str, Any]] | None, Meta(description="with type `structural_tag`, in its older form")
    ] = None
    triggers: Annotated[list[str] | None, Meta(description="with `structures`")] = None


def requested(
    response_format: ResponseFormat | None,
    structured_outputs: StructuredOutputsParams | None,
    guided: Mapping[str, Any],
) -> Constraint | None:
    """Returns the constraint of the answer.  Raises ConstraintError if it is wrong, or if there are two.

    guided: the fields `guided_...`, under their names without that prefix.
    """
    found = (
        ("response_format", None if response_format is None else _formatted(response_format)),
        ("structured_outputs", None if structured_outputs is None else constraint_of(structured_outputs)),
        ("guided_", _guided(guided)),
    )
    constraints = [(name, one) for name, one in found if one is not None]
    if len(constraints) > 1:
        (first, _), (second, other), *_ = constraints
        param = other.field if second == "guided_" else second
        raise ConstraintError(f"Send one constraint: the body has both {first} and {param}.", param)
    return constraints[0][1] if constraints else None


def _guided(given: Mapping[str, Any]) -> Constraint | None:
    if all(value is None or value is False for value in given.values()):
        return None
    return constraint_of(StructuredOutputsParams(**given), "guided_{}")


def _formatted(wanted: ResponseFormat) -> Constraint | None:
    field = "response_format"
    if wanted.type != "json_schema" and wanted.json_schema is not None:
        where = f"{field}.json_schema"
        raise ConstraintError(f"{where} is for type json_schema, not for {wanted.type}.", where)
    tag = {name: value for name in TAG if (value := getattr(wanted, name)) is not None}
    if wanted.type == "structural_tag":
        return _tag(wanted, tag)
    if tag:
        where = f"{field}.{next(iter(tag))}"
        raise ConstraintError(f"{where} is for type structural_tag, not for {wanted.type}.", where)
    if wanted.type == "text":
        if wanted.schema is not None:
            raise ConstraintError(f"{field}.schema is for JSON, not for type text.", f"{field}.schema")
        return None
    if wanted.json_schema is not None and wanted.schema is not None:
        raise ConstraintError(f"Send one schema: {field} has two.", f"{field}.schema")
    if wanted.json_schema is not None:
        text, name = schema_text(wanted.json_schema.schema, field), wanted.json_schema.name
        constraint = Constraint("json_schema", text, field, name)
    elif wanted.schema is not None:
        constraint = Constraint("json_schema", schema_text(wanted.schema, field), field)
    elif wanted.type == "json_schema":
        where = f"{field}.json_schema"
        raise ConstraintError(f"Missing required parameter: '{where}'.", where, "missing_required_parameter")
    else:
        constraint = Constraint("json_object", '{"type":"object"}', field)
    check_size(constraint)
    return constraint


def _tag(wanted: ResponseFormat, tag: Mapping[str, Any]) -> Constraint:
    field = "response_format"
    if wanted.schema is not None:
        where = f"{field}.schema"
        raise ConstraintError(f"{where} is for JSON, not for type structural_tag.", where)
    constraint = Constraint("structural_tag", json_text(tag, field, "a structural tag"), field)
    check_size(constraint)
    return constraint
