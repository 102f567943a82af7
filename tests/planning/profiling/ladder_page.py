"""`python -m tests.planning.profiling.ladder_page`: rewrites the table of docs/ladder.md."""

from __future__ import annotations

from pathlib import Path

from corepipe.cli.run.ladder import headings, rows
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.formats import FORMATS
from corepipe.planning.profiling.ladder import Ladder, LadderWork, ladder

PAGE = Path(__file__).parents[3] / "docs/ladder.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"
TOKENS = 197
"""Patches of an image, and the class token."""


def example() -> Ladder:
    """Returns the ladder of a ViT on inf2.xlarge, as `corepipe profile vit-base-patch16-224 --ladder` has
    it."""
    model, machine = architecture("vit-base-patch16-224"), instance("inf2.xlarge")
    return ladder(LadderWork(model, FORMATS["bf16"], machine, PROFILES["data-parallel"], TOKENS, 0, TOKENS))


def table(found: Ladder) -> str:
    """Returns the ladder as Markdown."""
    lines = [headings(found), ("---",) * len(headings(found)), *rows(found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Writes the page."""
    before, rest = PAGE.read_text().split(START)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{START}{table(example())}{END}{after}")


if __name__ == "__main__":
    main()
