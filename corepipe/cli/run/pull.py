"""Has terms accepted, fetches a model and prints its path: what `corepipe pull` does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from corepipe.cli.output.common import errors, print_json, progress_bar
from corepipe.errors import UserError
from corepipe.models import hub
from corepipe.models.packaged import Terms


def run(given: Mapping[str, Any]) -> None:
    """Fetches a model.  Raises UserError."""
    model = given["model"]
    terms = hub.terms_to_accept(model)
    if terms is not None:
        _accept(model, terms, by_flag=given["accept_license"])
    with progress_bar(errors()) as report:
        path = hub.resolve(model, report, accepted=True)
    if given["json"]:
        print_json({"model": model, "path": str(path)})
    else:
        sys.stdout.write(f"{path}\n")  # click's echo forces UTF-8 where there is ASCII alone


def _accept(model: str, terms: Terms, by_flag: bool) -> None:
    """Says what the terms are, and asks at a terminal.  Raises UserError where they are not accepted."""
    asked = not by_flag and sys.stdin.isatty() and sys.stderr.isatty()
    if not (by_flag or asked):
        raise UserError(
            f"{model}: {terms.name} ({terms.address}) must be accepted first: --accept-license does it",
            "accept_license",
        )
    errors().print(f"{model}: {terms.notice}")
    if asked and not _yes(f"Do you accept {terms.name}?"):
        raise UserError(f"{model}: {terms.name} are not accepted; nothing was fetched", "accept_license")


def _yes(question: str) -> bool:
    """Tells whether the user types yes; the end of the input, and anything else, is a no."""
    errors().print(f"{question} [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
