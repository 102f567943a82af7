"""Shared by the live comparisons with transformers on small random models: it saves them; a command line."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from transformers import PreTrainedModel

from tests.parity import formula
from tests.parity.checkpoints import Checkpoint

OF_THE_MAKER = re.compile(
    "architectures|dtype|transformers_version|use_cache|init.*|.*dropout|.*_pdrop|layerdrop|summary_.*"
)
"""Keys of a saved config about its author and its training, which do not change its outputs."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=Named)


def saved(model: PreTrainedModel, folder: Path) -> Checkpoint:
    """Saves a model with transformers, and fills the file by the formula."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    shapes = stored_shapes(file)
    formula.write_safetensors(file, shapes)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Checkpoint(
        {key: value for key, value in written.items() if not OF_THE_MAKER.fullmatch(key)}, shapes
    )


def stored_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {name: tuple(entry["shape"]) for name, entry in sorted(header.items()) if name != "__metadata__"}


def run(about: str | None, cases: Iterable[AnyCase], good: Callable[[AnyCase, Path, bool], bool]) -> None:
    """Calls `good` for each case, or for those that the command line names, with an empty directory and
    whether to keep transformers' outputs; exits with 1 where one is not good."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="some of the models")
    parser.add_argument("--write", action="store_true", help="keep what transformers answers")
    arguments = parser.parse_args()
    verdicts = []
    for case in cases:
        if not arguments.names or case.name in arguments.names:
            with tempfile.TemporaryDirectory() as folder:
                verdicts.append(good(case, Path(folder), arguments.write))
    sys.exit(0 if all(verdicts) else 1)
