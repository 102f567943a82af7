"""Planted faults: whether the short suite finds what the long one finds.  `make planted`."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "planted"
PACKAGE = "corepipe/"
