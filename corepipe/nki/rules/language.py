"""The rules of the language, and what is found in a run that goes on."""

from __future__ import annotations

from corepipe.nki.rules.rule import API, CURRENT, ERRORS, Kind, Rule

CALLS = (
    Rule(
        "shape",
        "operands have the same partitions and elements; scales and biases are numbers or [partitions, 1]",
        "",
        "",
        ERRORS + "num_partition_mismatch",
    ),
    Rule("engine", "an instruction runs on the engines that have it", "", "", API + "engine"),
    Rule("operation", "an engine applies the operations that it has", "", "", API + "supported operators"),
)
"""Rules of calls: the functions in `isa` check them before they compute, and write the messages."""

FINDINGS = (
    Rule(
        "accumulation",
        "a product adds to what another product left, and to nothing else",
        "{operand} was last written by {writer}",
        "let the first product overwrite it (accumulate=False)",
        API + "nc_matmul",
        {"v2": 0, "v3": 0},
        (CURRENT,),
        Kind.FINDING,
    ),
    Rule(
        "uninitialised",
        "memory that nothing has written holds anything",
        "{found} of the {count} elements of {operand} that are read here were never written",
        "write them first, or read what was written alone",
        "programming model",
        kind=Kind.FINDING,
    ),
)
"""Findings of a run."""
