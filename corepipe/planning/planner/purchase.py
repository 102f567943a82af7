"""Ways to buy an instance, and the region of the list prices."""

from __future__ import annotations

from enum import StrEnum

REGION = "us-east-1"
"""Region of the list prices."""


class Purchase(StrEnum):
    """A way to buy an instance."""

    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    CAPACITY_BLOCK = "capacity-block"
