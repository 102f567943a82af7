"""Planted faults: measures whether the short suite finds what the long one finds.  `make planted`.

A fault is a small change of one line: a comparison turned, a number one more, a statement left out.
`faults.py` chooses 120 by a seed, a share for each area of `areas.py`.  Each is planted in a copy of the tree
(`trees.py`), and the tests that run its line are run up to the first that fails.  What the short suite lets
pass is tried on the tests marked `slow` of its area.  The short suite is to find 97 % of what either does.

    python -m tests.planted.run --contexts               which test runs which line: an hour, then kept
    python -m tests.planted.run                          tries what has no result yet
    python -m tests.planted.run --list --areas kernels   the faults, and the tests that would be run
    python -m tests.planted.run --first 7 --last 7 --again

| file | what |
|---|---|
| `areas.py` | the areas: their sources, their shares, their long tests |
| `candidate.py`, `faults.py` | which changes can be made, and which of them are |
| `python_faults.py`, `native_faults.py` | changes of Python (cosmic-ray's operators) and of C++ |
| `contexts.py`, `context_plugin.py` | which test runs which line, by coverage's contexts |
| `choice.py` | which tests are run for a fault, and in what order |
| `trees.py`, `native_build.py` | copies of the tree, and kernels built in them |
| `pytest_run.py`, `trial.py` | one run of tests; one fault |
| `table.py`, `run.py` | the results; the command line |

The results are in `tests/data/planted.tsv`; `tests/data/planted_equivalent.tsv` has the keys of faults that
change nothing that can be seen, each with the reason, kept by hand: they do not count.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "planted"
PACKAGE = "corepipe/"
