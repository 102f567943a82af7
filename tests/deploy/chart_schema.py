"""Writes from the fields of settings what the chart says of them: `python -m tests.deploy.chart_schema`.

A value of the chart that is a setting of `corepipe serve` (`Flag.chart`) has the choices and bounds of its
field in the schema, and null where values.yaml leaves it to the server; a template has its flag.  Patterns
and all other values stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import reduce
from typing import Any, Literal, get_args, get_origin

from corepipe.cli.flags.also import OWN
from corepipe.engine.config import EngineConfig
from corepipe.engine.flag import Flag, flag_names, flags_in
from corepipe.serving.config import ServerConfig
from tests.deploy.charts import CHART, default_values

SCHEMA = CHART / "values.schema.json"

BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "multiple_of": "multipleOf"}
"""pydantic's names of bounds, and JSON schema's."""

TEMPLATE = CHART / "templates" / "_settings.tpl"

HEAD = """\
{{/* Flags of settings by their keys in values.yaml: made by `python -m tests.deploy.chart_schema`. */}}
{{- define "corepipe.settings" -}}
"""

LEAF = re.compile(r'( *"[\w-]+": )(\{.*\})(,?)')


def settings() -> Iterator[tuple[str, Any, Flag]]:
    """Yields the chart's values that are settings: a value's key, its field, and its flag."""
    for config in (EngineConfig, ServerConfig):
        for name, flag in flags_in(config).items():
            if flag.chart is not None:
                yield flag.chart, config.model_fields[name], flag


def facts(key: str, field: Any, flag: Flag) -> dict[str, Any]:
    """Returns what a field says of its value, in JSON schema's words."""
    missing = [None] if _at(key) is None else []
    choices = _choices(flag.choices or field.annotation)
    if choices:
        return {"enum": [*missing, *choices]}
    return {
        name: getattr(mark, bound)
        for mark in field.metadata
        for bound, name in BOUNDS.items()
        if getattr(mark, bound, None) is not None
    }


def _at(key: str) -> Any:
    return reduce(lambda at, part: at[part], key.split("."), default_values())


def _choices(kind: Any) -> list[str]:
    """Returns the words of a Literal, alone or beside None."""
    literals = [one for one in (kind, *get_args(kind)) if get_origin(one) is Literal]
    return [*get_args(literals[0])] if literals else []


def schema(text: str) -> str:
    """Returns the schema with what the fields say now.  Raises ValueError where it has no value for one."""
    known = {key: said for key, field, flag in settings() if (said := facts(key, field, flag))}
    path: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if opened := re.match(r'( *)"([\w-]+)": ', line):
            path = [*path[: len(opened[1]) // 2 - 1], opened[2]]
        found, key = LEAF.fullmatch(line), ".".join(path[1::2])
        if found and {*path[::2]} == {"properties"} and key in known:
            value = json.dumps({**json.loads(found[2]), **known.pop(key)})
            lines[number] = f"{found[1]}{value}{found[3]}"
    if known:
        raise ValueError(f"the schema has no {', '.join(known)}")
    return _with_options("\n".join([*lines, ""]))


def template() -> str:
    """Returns the template with the flags of all settings, but for those that depend on other values."""
    flags = {
        flag.chart: flag_names(config, name)[0].replace("--", "")
        for config in (EngineConfig, ServerConfig)
        for name, flag in flags_in(config).items()
        if flag.chart is not None and name not in {"model", "threads"}
    }
    return HEAD + "".join(f"{key}: {flags[key]}\n" for key in sorted(flags)) + "{{- end }}\n"


def _with_options(text: str) -> str:
    """Puts the options of a further model in."""
    rows = re.search(r'(?: +"[\w-]+": \{"\$ref": "#/\$defs/option"\},?\n)+', text)
    assert rows is not None
    indent = " " * (len(rows[0]) - len(rows[0].lstrip()))
    made = ",\n".join(f'{indent}"{option}": {{"$ref": "#/$defs/option"}}' for option in OWN)
    return f"{text[: rows.start()]}{made}\n{text[rows.end() :]}"


if __name__ == "__main__":
    SCHEMA.write_text(schema(SCHEMA.read_text()))
    TEMPLATE.write_text(template())
