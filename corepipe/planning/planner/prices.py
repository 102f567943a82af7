"""Prices of an hour of an instance: the catalogue's dated list prices, or those of the user's file.

A price belongs to an instance, a way to buy it and a region.  The list prices are those of us-east-1; that of
trn2.3xlarge is a third party's, of the one region that has it.  trn3 has no published price.
"""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path

from corepipe.errors import UserError, why
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.planning.planner.purchase import REGION, Purchase

COLUMNS = ("instance", "purchase", "region", "$/h")
MAX_FILE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Price:
    """A price in US dollars per hour; `source` says where the number is from and its date."""

    instance: str
    purchase: Purchase
    region: str
    per_hour: float
    source: str


OTHER_PRICES = (
    Price("trn2.48xlarge", Purchase.CAPACITY_BLOCK, REGION, 44.70, "capacity block, December 2024"),
    Price("trn2.48xlarge", Purchase.RESERVED, REGION, 34.39, "three years reserved, December 2024"),
)
"""Prices that the Neuron documentation does not list."""

OTHER_REGIONS = {"trn2.3xlarge": "ap-southeast-4"}
"""Instances whose only known price is of another region."""

SOURCES = {
    Purchase.ON_DEMAND: "Neuron SDK documentation, 2021-08 to 2024-09",
    Purchase.RESERVED: "Neuron SDK documentation since 2024-09",
}


DOCUMENTED = "about-neuron/benchmarks/"
"""Path of the prices in the Neuron documentation."""


class PriceList:
    """A list of prices.  `origin` names the list in messages."""

    def __init__(self, prices: Iterable[Price], origin: str) -> None:
        self._prices = {(p.instance, p.purchase, p.region): p for p in prices}
        self._origin = origin

    @property
    def all(self) -> tuple[Price, ...]:
        """Every price."""
        return tuple(self._prices.values())

    def get(self, instance: str, purchase: Purchase, region: str) -> Price | None:
        """Returns the price; None where the list has none."""
        return self._prices.get((instance, purchase, region))

    def require(self, instance: str, purchase: Purchase, region: str) -> Price:
        """Returns the price.  Raises UserError, which names the list's prices for this instance."""
        price = self.get(instance, purchase, region)
        if price is None:
            raise UserError(self._missing(instance, purchase, region), "purchase")
        return price

    def otherwise(self, instance: str) -> str:
        """Returns the flags with which the list has a price for an instance; or how to give one."""
        known = [p for p in self._prices.values() if p.instance == instance]
        others = ", ".join(f"--purchase {p.purchase} --region {p.region} ({p.per_hour:g} $/h)" for p in known)
        return others or "give it with --prices FILE"

    def check_region(self, purchase: Purchase, region: str) -> None:
        """Raises UserError where the list has no price at all for this way of buying and region."""
        if any(key[1:] == (purchase, region) for key in self._prices):
            return
        regions = sorted({where for _, _, where in self._prices})
        if region not in regions:
            near = difflib.get_close_matches(region, regions, n=1) or regions
            raise UserError(
                f"--region {region}: {self._origin} has no prices there; use --region {' or '.join(near)}, "
                "or give your own with --prices FILE",
                "region",
            )
        ways = sorted({how.value for _, how, where in self._prices if where == region})
        raise UserError(
            f"--purchase {purchase}: {self._origin} has no such price in {region}; use {' or '.join(ways)}",
            "purchase",
        )

    def _missing(self, instance: str, purchase: Purchase, region: str) -> str:
        others = self.otherwise(instance)
        have = f"it has {others}" if others.startswith("--purchase") else others
        return f"--instance {instance}: {self._origin} has no {purchase} price in {region}; {have}"


def list_prices() -> PriceList:
    """Returns the catalogue's prices, and those that it does not hold."""
    return PriceList([*_catalogue(), *OTHER_PRICES], "the price list")


def _catalogue() -> Iterator[Price]:
    for instance in INSTANCES:
        region = OTHER_REGIONS.get(instance.name, REGION)
        for purchase, price, name in (
            (Purchase.ON_DEMAND, instance.on_demand_per_hour, "on_demand_per_hour"),
            (Purchase.RESERVED, instance.reserved_per_hour, "reserved_per_hour"),
        ):
            if price is not None:
                origin = instance.source(name)
                source = SOURCES[purchase] if origin.startswith(DOCUMENTED) else origin
                yield Price(instance.name, purchase, region, price, source)


def read_prices(path: Path) -> PriceList:
    """Reads prices from a CSV file with the columns instance,purchase,region,$/h, or a JSON list of such
    objects.

    They replace the list prices: instances without a price in the file are not planned with.  Raises
    UserError, which names the file, the row and the field, for anything missing or wrong.
    """
    try:
        with path.open("rb") as file:  # the size is not read first: a pipe or a device has none
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UserError(
                f"--prices {path}: larger than {MAX_FILE_BYTES} bytes, not a price list", "prices"
            )
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prices {path}: cannot be read: {why(error)}", "prices") from error
    rows = _json_rows(path, text) if path.suffix.lower() == ".json" else _csv_rows(path, text)
    prices = [_price(f"--prices {path}, {where}", row, str(path)) for where, row in rows]
    if not prices:
        raise UserError(f"--prices {path}: has no prices; write rows of {','.join(COLUMNS)}", "prices")
    return PriceList(prices, str(path))


def _csv_rows(path: Path, text: str) -> list[tuple[str, Mapping[str, object]]]:
    reader = csv.DictReader(StringIO(text), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise UserError(
            f"--prices {path}: no column {missing[0]!r}; the first line must be {','.join(COLUMNS)}", "prices"
        )
    try:
        return [(f"line {reader.line_num}", row) for row in reader]
    except csv.Error as error:
        raise UserError(f"--prices {path}: is not CSV: {error}", "prices") from error


def _json_rows(path: Path, text: str) -> list[tuple[str, Mapping[str, object]]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--prices {path}: is not valid JSON: {error}", "prices") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"--prices {path}: must be a list of objects with {', '.join(COLUMNS)}", "prices")
    return [(f"entry {number}", row) for number, row in enumerate(rows, 1)]


def _price(where: str, row: Mapping[str, object], source: str) -> Price:
    fields = {name: _field(where, row, name) for name in COLUMNS}
    try:
        name = find_instance(fields["instance"]).name
    except UserError as error:
        raise UserError(f"{where}: {error.message.removeprefix('--instance: ')}", "prices") from error
    return Price(
        name, _purchase(where, fields["purchase"]), fields["region"], _dollars(where, fields["$/h"]), source
    )


def _field(where: str, row: Mapping[str, object], name: str) -> str:
    value = row.get(name)
    text = "" if value is None else str(value).strip()
    if not text:
        raise UserError(f"{where}: {name} is missing; fill it in or delete the row", "prices")
    return text


def _purchase(where: str, text: str) -> Purchase:
    try:
        return Purchase(text)
    except ValueError as error:
        near = difflib.get_close_matches(text, [p.value for p in Purchase], n=1, cutoff=0.0)[0]
        raise UserError(
            f"{where}: purchase {text!r:.40} is not known; did you mean {near}?", "prices"
        ) from error


def _dollars(where: str, text: str) -> float:
    try:
        dollars = float(text)
    except ValueError:
        dollars = 0.0
    if not (isfinite(dollars) and dollars > 0):
        raise UserError(f"{where}: $/h must be a positive number, not {text!r:.40}", "prices")
    return dollars
