"""Writes what docs/models.md lists, and the counts in other documents: `python -m tests.models_page`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from corepipe.models import hub, published, registry
from corepipe.models.checkpoints.gguf_blocks import BLOCK_TYPES
from corepipe.models.checkpoints.gguf_families import GGUF_FAMILIES
from corepipe.models.checkpoints.quantization import FORMATS
from corepipe.models.checkpoints.safetensors import DTYPES
from corepipe.models.families import FAMILIES
from corepipe.models.packaged import PACKAGED
from corepipe.models.registry import computed_families
from corepipe.models.sentence_transformers import ACTIVATIONS, MODES, SCORES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
COUNTED = ("README.md", "docs/deploy.md", "corepipe/cli/serve.py")
"""Files beside docs/models.md that state how many models there are."""

LISTS = {
    r"Pooling \(one of": MODES,
    r"Dense \(": ACTIVATIONS,
    r"`activation_fn` names one of": SCORES,
    r"several with an index \|": DTYPES,
    r"`\.gguf`, one or several \(`-00001-of-00002\.gguf`\) \|": [t.name for t in BLOCK_TYPES.values()],
    r"These architectures of GGUF\nfiles are supported:": GGUF_FAMILIES,
    r"These formats of compressed-tensors are supported:": FORMATS,
}
"""Names that the page lists, by the text before them."""


def page(text: str) -> str:
    """Returns docs/models.md with the lists, tables and counts of now."""
    for before, names in LISTS.items():
        text = re.sub(rf"(?<={before})(\s*)`[^`]+`(, `[^`]+`)*", rf"\1{_listed(names)}", text)
    computed = computed_families()
    families = [f"| `{name}` | {'computed' if name in computed else 'timed'} |" for name in FAMILIES]
    text = _with_table(text, "| model_type | |", families)
    text = _with_table(text, "| model_type | parameters | names |", _rows())
    counts = {" others\nare timed": len(FAMILIES) - len(computed), " shapes.": len(_shapes())}
    for behind, count in counts.items():
        text = re.sub(rf"\d+(?={re.escape(behind)})", str(count), text)
    return with_counts(text)


def with_counts(text: str) -> str:
    """Returns a document with the numbers of computed model types and of named models, and the size of the
    default model."""
    counts = {
        r"(?= model types\b)": len(computed_families()),
        r"(?= public models\b)": len(published.names()),
        r"(?= MB(?:\)| on disk\b))": round(PACKAGED[hub.DEFAULT_MODEL].size / 1e6),
    }
    for behind, count in counts.items():
        text = re.sub(rf"\b\d+{behind}", str(count), text)
    return text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _with_table(text: str, head: str, rows: Iterable[str]) -> str:
    table = re.compile(rf"(?<={re.escape(head)}\n)(\|-[|-]+\n)(?:\|.*\n)+")
    return table.sub(lambda found: found[1] + "".join(f"{row}\n" for row in rows), text)


def _shapes() -> list[list[str]]:
    """Returns the names of each shape."""
    shapes: dict[str, list[str]] = {}
    for name in published.names():
        shapes.setdefault(str(published.config(name)), []).append(name)
    return list(shapes.values())


def _rows() -> Iterator[str]:
    models = [(registry.architecture(names[0]), names) for names in _shapes()]
    rows = [(one.config.model_type, one.parameters, [f"`{n}`" for n in names]) for one, names in models]
    yield from (f"| {kind} | {_count(size)} | {', '.join(names)} |" for kind, size, names in sorted(rows))


def _count(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f} B"
    return f"{parameters / 1e6:.0f} M" if parameters >= 1e7 else f"{parameters / 1e6:.1f} M"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    for name in COUNTED:
        (ROOT / name).write_text(with_counts((ROOT / name).read_text()))
