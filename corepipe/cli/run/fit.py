"""What `corepipe fit` does: constants from measurements, into a profile file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from corepipe.cli.common import check_writable, errors, write_result
from corepipe.errors import UserError
from corepipe.neuron.constants import shipped
from corepipe.neuron.profiles import PROFILES, as_text
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import fit as fit_constants
from corepipe.planning.calibration.fit import usable
from corepipe.planning.calibration.rows import read

PULL = 4.0
"""How strongly the constants stay near the shipped ones: a tenth apart weighs as four rows a tenth off."""


def run(rows: Path, output: Path, profile: str | None) -> None:
    """Fits to the rows and writes the profile.  Raises UserError for files and names that do not do."""
    base = profile or "vllm-neuron"
    if base not in PROFILES:
        raise UserError(
            f"--profile {base}: give the name of a profile to refine: {', '.join(PROFILES)}", "profile"
        )
    check_writable("--output", output)
    table, cases = read(rows), Cases(PROFILES[base] if profile else None)
    used = usable(table.rows, cases)
    if not used:
        raise UserError(f"{rows}: no row has a value that can be compared with a prediction")
    found = fit_constants(used, cases, shipped(), PULL)
    source = f"corepipe fit: {len(used)} rows of {rows.name}"
    refined = replace(
        PROFILES[base], name=output.stem, source=source, constants=tuple(sorted(found.constants.items()))
    )
    write_result("--output", output, as_text(refined, base, {"rows": dict(found.rows)}))
    counted = ", ".join(f"{count} rows of {version}" for version, count in found.rows.items())
    errors().print(f"fitted to {counted}; written to {output}; use it as --profile {output}")
