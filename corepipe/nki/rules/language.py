"""The rules of the language, and what is found in a run that goes on."""

from __future__ import annotations

from corepipe.nki.rules.rule import API, ERRORS, Kind, Rule

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
        "uninitialised",
        "memory that nothing has written holds anything",
        "{found} of the {count} elements of {operand} that are read here were never written",
        "write them first, or read what was written alone",
        "programming model",
        kind=Kind.FINDING,
    ),
)
"""Findings of a run."""
