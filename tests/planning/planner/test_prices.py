from __future__ import annotations

import json
from pathlib import Path

import pytest

from corepipe.errors import UserError
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.planning.planner.prices import list_prices, read_prices
from corepipe.planning.planner.purchase import REGION, Purchase

HEAD = "instance,purchase,region,$/h\n"


def file(tmp_path: Path, text: str, name: str = "prices.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_prices(path)
    assert caught.value.param == "prices"
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_catalogue_is_the_price_list_of_one_region() -> None:
    prices = list_prices()
    for instance in INSTANCES:
        price = prices.get(instance.name, Purchase.ON_DEMAND, REGION)
        if instance.name != "trn2.3xlarge":
            assert (price.per_hour if price else None) == instance.on_demand_per_hour


@pytest.mark.parametrize(
    ("purchase", "dollars"), [(Purchase.CAPACITY_BLOCK, 44.70), (Purchase.RESERVED, 34.39)]
)
def test_trn2_is_bought_in_blocks_or_reserved(purchase: Purchase, dollars: float) -> None:
    price = list_prices().require("trn2.48xlarge", purchase, REGION)
    assert price.per_hour == dollars
    assert "December 2024" in price.source


def test_a_purchase_that_an_instance_does_not_have_names_those_it_has() -> None:
    with pytest.raises(
        UserError, match=r"trn2\.48xlarge.*no on-demand price.*capacity-block.*44\.7"
    ) as caught:
        list_prices().require("trn2.48xlarge", Purchase.ON_DEMAND, REGION)
    assert "reserved" in caught.value.message


def test_a_region_without_prices_names_the_nearest_and_the_file() -> None:
    with pytest.raises(UserError, match=r"--region us-east-2.*--region us-east-1.*--prices FILE"):
        list_prices().check_region(Purchase.ON_DEMAND, "us-east-2")


def test_a_purchase_that_a_region_does_not_have_names_those_it_has() -> None:
    with pytest.raises(UserError, match=r"capacity-block.*ap-southeast-4; use on-demand"):
        list_prices().check_region(Purchase.CAPACITY_BLOCK, "ap-southeast-4")


def test_a_csv_file_stands_alone(tmp_path: Path) -> None:
    prices = read_prices(file(tmp_path, HEAD + "inf2.xlarge,on-demand,eu-west-1,0.8\n\n"))
    price = prices.require("inf2.xlarge", Purchase.ON_DEMAND, "eu-west-1")
    assert price.per_hour == 0.8
    assert price.source.endswith("prices.csv")
    assert prices.get("trn1.2xlarge", Purchase.ON_DEMAND, "eu-west-1") is None
    assert prices.get("inf2.xlarge", Purchase.ON_DEMAND, REGION) is None


def test_a_json_file_is_a_list_of_the_same_rows(tmp_path: Path) -> None:
    rows = [{"instance": "trn1.2xlarge", "purchase": "reserved", "region": "eu-west-1", "$/h": 0.5}]
    prices = read_prices(file(tmp_path, json.dumps(rows), "prices.json"))
    assert prices.require("trn1.2xlarge", Purchase.RESERVED, "eu-west-1").per_hour == 0.5


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("inf2.xlarge,on-demand,eu-west-1,", r"line 2: \$/h is missing"),
        ("inf2.xlarge,on-demand", r"line 2: region is missing"),
        (
            "inf2.xlrge,on-demand,eu-west-1,1",
            r"line 2: unknown instance 'inf2.xlrge'; .*inf2.xlarge",
        ),
        (
            "inf2.xlarge,ondemand,eu-west-1,1",
            r"line 2: purchase 'ondemand' .*mean on-demand",
        ),
        ("inf2.xlarge,on-demand,eu-west-1,-1", r"line 2: \$/h must be a positive number, not '-1'"),
        ("inf2.xlarge,on-demand,eu-west-1,nan", r"positive number"),
        ("inf2.xlarge,on-demand,eu-west-1,cheap", r"positive number"),
        ("", r"has no prices"),
    ],
)
def test_holes_and_slips_are_named_by_line(tmp_path: Path, row: str, says: str) -> None:
    path = file(tmp_path, HEAD + row)
    with pytest.raises(UserError, match=says):
        read_prices(path)
    assert str(path) in complaint(path)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("instance,price\ninf2.xlarge,1\n", "p.csv", "no column 'purchase'"),
        ("", "p.csv", "no column 'instance'"),
        ("{", "p.json", "not valid JSON"),
        ('{"a": 1}', "p.json", "must be a list of objects"),
        ('[{"instance": "inf2.xlarge"}]', "p.json", "entry 1: purchase is missing"),
    ],
)
def test_files_that_are_no_price_lists(tmp_path: Path, text: str, name: str, says: str) -> None:
    assert says in complaint(file(tmp_path, text, name))


def test_what_never_ends_is_no_price_list() -> None:
    assert "larger than" in complaint(Path("/dev/zero"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot be read" in complaint(tmp_path / "none.csv")
