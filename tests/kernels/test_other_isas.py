"""Every other table of kernels of this build: the tests that run its loops, in a process each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corepipe.kernels import _native
from tests.kernels.harness import FEW, NO_OTHER

ROOT = Path(__file__).parents[2]
OTHERS = [isa for isa in _native.isas() if isa != _native.isa() and "COREPIPE_ISA" not in os.environ]
"""Names of the other tables; empty in a process of another table."""

KERNELS = tuple(
    f"tests/kernels/test_{name}.py"
    for name in ("attention", "executor", "experts", "latents", "linear", "rows", "sampler", "scans")
)
ENCODERS, DECODERS = "tests/neuron/test_encoders.py", "tests/neuron/test_executor.py"
SHORT = (
    *KERNELS,
    *(
        f"{ENCODERS}::test_{name}"
        for name in (
            "kernels_agree_with_the_twin",
            "a_text_has_the_same_bits_alone_and_in_any_company",
            "every_way_of_pooling",
            "normalized_rows_have_length_one",
            "a_poisoned_text_leaves_its_neighbours_alone",
        )
    ),
    f"{DECODERS}::test_kernels_agree_with_the_twin",
    f"{DECODERS}::test_fusion_changes_no_bit",
)
"""Tests of the short form, without those of cuts of a model and of refusals, which are the same
everywhere."""


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "whole"])
@pytest.mark.parametrize("isa", OTHERS or [pytest.param("none", marks=pytest.mark.skip(reason=NO_OTHER))])
def test_other_isas(isa: str, whole: bool) -> None:
    """A process has one table, which all files share."""
    command = [sys.executable, "-m", "pytest", "-x", *("-p", "no:cacheprovider", "-p", "hypothesispytest")]
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env = {**os.environ, **plain, "COREPIPE_ISA": isa, **({} if whole else {FEW: "1"})}
    tests = (*KERNELS, ENCODERS, DECODERS) if whole else SHORT
    done = subprocess.run([*command, *tests], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
