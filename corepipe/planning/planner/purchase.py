"""How an instance is bought, and where: what a price depends on beside the instance."""

from __future__ import annotations

from enum import StrEnum

REGION = "us-east-1"
"""Region of the list prices."""


class Purchase(StrEnum):
    """How an instance is bought."""

    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    CAPACITY_BLOCK = "capacity-block"
