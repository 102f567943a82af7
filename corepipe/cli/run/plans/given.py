"""The input of plans for all kinds of models: a demand, a market, instances, and a time for the search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

from corepipe.cli.flags.options import Given
from corepipe.cli.output.common import ReportProgress, errors, progress_bar, seconds, sigterm_as_interrupt
from corepipe.errors import UserError
from corepipe.neuron.chips import catalog
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.formats import TIMED_FORMATS, Format
from corepipe.planning.planner.demand import Demand, Objectives
from corepipe.planning.planner.planner import Market
from corepipe.planning.planner.prices import list_prices, read_prices
from corepipe.planning.planner.search_result import SearchStopped
from corepipe.workload.lengths import Lengths


def asked_demand(given: Given) -> Demand:
    """Returns the requests and the objectives.  Raises UserError."""
    rate = given["rate"]
    if rate is None:
        raise UserError("give --rate in requests a second (or --buckets, which needs none)", "rate")
    if not 0 < rate < inf:
        raise UserError(f"--rate must be a number of requests a second above 0, not {rate}", "rate")
    ttft, tpot = (seconds(f"--{name}", given[name]) for name in ("ttft", "tpot"))
    return Demand(
        Lengths.parse(given["input_len"], "input-len"),
        Lengths.parse(given["output_len"], "output-len"),
        Objectives(ttft, tpot, given["percentile"], rate, given["margin"] / 100),
        given["requests"],
        given["seed"],
    )


def asked_market(given: Given) -> Market:
    """Returns the prices.  Raises UserError for a file that cannot be read."""
    prices = read_prices(given["prices"]) if given["prices"] else list_prices()
    return Market(prices, given["purchase"], given["region"])


def asked_instances(given: Given) -> tuple[Instance, ...]:
    """Returns the instances that may be chosen, in the catalogue's order."""
    named = {catalog.instance(name).name for name in given["instance"] or []}
    return tuple(one for one in catalog.INSTANCES if not named or one.name in named)


def asked_formats(given: Given) -> tuple[Format, ...] | None:
    """Returns the formats that may be chosen; None where the flag is left out."""
    return tuple(TIMED_FORMATS[name] for name in dict.fromkeys(given["dtype"] or [])) or None


@contextmanager
def searching(given: Given) -> Iterator[ReportProgress]:
    """Yields the function that shows how far a search is, and raises SearchStopped once its time is over."""
    limit = seconds("--time-limit", given["time_limit"])
    deadline = inf if limit is None else monotonic() + limit
    with progress_bar(errors()) as bar, sigterm_as_interrupt():

        def report(what: str, done: float, note: str = "") -> None:
            bar(what, done, note)
            if monotonic() >= deadline:
                raise SearchStopped(f"--time-limit {limit:g}s")

        yield report
