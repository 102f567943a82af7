"""`corepipe fit`: a user's own measurements refine the constants, into a profile file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from corepipe.cli import options
from corepipe.cli.common import errors
from corepipe.errors import UserError
from corepipe.neuron.constants import shipped
from corepipe.neuron.profiles import PROFILES, write
from corepipe.planning.cases import Cases
from corepipe.planning.fit import fit as fit_constants
from corepipe.planning.fit import usable
from corepipe.planning.rows import read

Rows = Annotated[Path, typer.Argument(help="A CSV file of measurements.", dir_okay=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Write the profile here.")]

PULL = 4.0
"""How strongly the constants stay near the shipped ones: a tenth apart weighs as four rows a tenth off."""


def fit(rows: Rows, output: Output, profile: options.Profile = None) -> None:
    """Refine the cost model's constants with your own measurements, into a profile that commands take.

    Few rows move the constants little.  The profile is that of --profile, or of vllm-neuron, with its own
    constants.
    """
    base = profile or "vllm-neuron"
    if base not in PROFILES:
        raise UserError(
            f"--profile {base}: give the name of a profile to refine: {', '.join(PROFILES)}", "profile"
        )
    table, cases = read(rows), Cases(PROFILES[base] if profile else None)
    used = usable(table.rows, cases)
    if not used:
        raise UserError(f"{rows}: no row has a value that can be compared with a prediction")
    found = fit_constants(used, cases, shipped(), PULL)
    source = f"corepipe fit: {len(used)} rows of {rows.name}"
    refined = replace(
        PROFILES[base], name=output.stem, source=source, constants=tuple(sorted(found.constants.items()))
    )
    write(refined, base, output, {"rows": dict(found.rows)})
    counted = ", ".join(f"{count} rows of {version}" for version, count in found.rows.items())
    errors().print(f"fitted to {counted}; written to {output}; use it as --profile {output}")
