"""Writes the chart's README.md from its values.yaml: `python -m tests.deploy.chart_readme`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.deploy.charts import CHART

PAGE = CHART / "README.md"

HEAD = """\
# The corepipe chart

<!-- Written from values.yaml by `python -m tests.deploy.chart_readme`; a test compares. -->

Serves a model at an OpenAI-compatible endpoint, on emulated Neuron devices. `docs/deploy.md` leads from
nothing to a running release.

```sh
helm install corepipe helm/corepipe --set image.repository=REGISTRY/corepipe
helm upgrade corepipe helm/corepipe --reuse-values --values plan.yaml   # as `corepipe plan` writes it
```

Every value is checked by `values.schema.json`; there is none that does nothing. A dash leaves a setting to
the server.
"""

KEY = re.compile(r"^( *)([A-Za-z0-9_.]+):")


@dataclass
class Section:
    title: str
    rows: list[tuple[str, str, str]]


def sections(text: str) -> list[Section]:
    """(key, default, description) of every value with a comment above it."""
    defaults: Any = yaml.safe_load(text)
    found: list[Section] = []
    comment: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            found.append(Section(line[3:], []))
        elif line.strip().startswith("# "):
            comment.append(line.strip()[2:])
        elif key := KEY.match(line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if comment and found:
                found[-1].rows.append((".".join(path), _shown(_at(defaults, path)), " ".join(comment)))
            comment = []
        else:
            comment = []
    return found


def leaves(values: Any, path: str = "") -> Iterator[str]:
    """Keys of all values that are no mappings, or empty ones."""
    for key, value in values.items():
        inner = f"{path}.{key}".strip(".")
        if isinstance(value, dict) and value:
            yield from leaves(value, inner)
        else:
            yield inner


def page() -> str:
    parts = [HEAD]
    for section in sections((CHART / "values.yaml").read_text()):
        rows = [f"| `{key}` | {default} | {what} |" for key, default, what in section.rows]
        parts.append(
            "\n".join([f"## {section.title}", "", "| value | default | what |", "|---|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page())
