"""Tests of buckets: the choice against trying all, and the savings on traces of heavy-tailed lengths."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.planning.buckets.bucketing import CompileWork
from corepipe.planning.buckets.choose import LengthCounts, candidates, choices
from corepipe.workload.traces import TraceFormat, write_trace
from corepipe.workload.workload import Segment, Session, Turn, Workload
from tests.servers import run


def waste(found: LengthCounts, buckets: Any) -> float:
    """Returns the tokens of padding."""
    return float(found.padded(buckets) @ np.asarray(buckets, np.float64)) - found.tokens


LENGTHS = st.lists(st.integers(1, 24), min_size=1, max_size=20)


@settings(max_examples=60)
@given(LENGTHS, st.integers(1, 4), st.integers(1, 8), st.integers(0, 4))
def test_the_choice_is_the_best_of_all(lengths: list[int], number: int, step: int, beyond: int) -> None:
    """The search covers all sets of so many multiples of the step below the longest sequence, and that
    itself."""
    longest = max(lengths) + beyond
    found = LengthCounts.of(lengths)
    chosen = choices(found, candidates(found, longest, step), number)[-1]
    others = range(step, longest, step)
    best = min(
        waste(found, (*smaller, longest))
        for count in range(min(number - 1, len(others)) + 1)
        for smaller in combinations(others, count)
    )
    assert len(chosen) <= number
    assert chosen[-1] == longest
    assert waste(found, chosen) == pytest.approx(best)


@given(LENGTHS)
def test_more_graphs_never_pad_more(lengths: list[int]) -> None:
    found = LengthCounts.of(lengths)
    wasted = [waste(found, chosen) for chosen in choices(found, candidates(found, 64, 1), 8)]
    assert wasted == sorted(wasted, reverse=True)


def test_a_length_beyond_all_buckets_is_refused() -> None:
    with pytest.raises(ValueError, match="70 fits no bucket of up to 64"):
        choices(LengthCounts.of([70]), np.array([32, 64]), 2)


@given(LENGTHS, st.integers(1, 6))
def test_the_longest_of_a_batch(lengths: list[int], several: int) -> None:
    """The total weight stays the same, and the mean is that of the maximum of independent draws."""
    found = LengthCounts.of(lengths)
    longest = found.largest_of(several)
    assert longest.count == pytest.approx(found.count)
    share = np.cumsum(found.weights) / found.count
    expected = found.longest - float(np.sum(np.diff(found.lengths) * share[:-1] ** several))
    assert longest.tokens / longest.count == pytest.approx(expected)


def trace(path: Path, schema: TraceFormat, sigma: float) -> None:
    """Writes 400 requests of heavy-tailed lengths: prompts around 1000 tokens, answers around 150."""
    random = Random(7)

    def length(median: float, most: int) -> int:
        return min(most, max(1, round(random.lognormvariate(np.log(median), sigma))))

    turns = [Turn((Segment(2 * i, length(1000, 14_000)),), length(150, 1500), 2 * i + 1) for i in range(400)]
    sessions = [Session(float(i), (turn,)) for i, turn in enumerate(turns)]
    write_trace(path, Workload(lambda: iter(sessions), chained=False), schema)


def planned(path: Path, *flags: str) -> dict[str, Any]:
    shown = run(
        "plan", "llama-3.1-8b", "--buckets", "--trace", str(path), "--max-num-seqs", "8", "--json", *flags
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    document = json.loads(shown.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("sigma", [0.5, 0.7])
@pytest.mark.parametrize("schema", ["azure", "mooncake"])
def test_padding_is_halved_with_as_many_graphs_as_the_default(
    tmp_path: Path, schema: TraceFormat, sigma: float
) -> None:
    path = tmp_path / "trace"
    trace(path, schema, sigma)
    found = planned(path, "--instance", "inf2.48xlarge", "--tensor", "8")
    default, chosen = found["default"], found["chosen"]
    assert chosen["graphs"] <= default["graphs"]
    assert default["prefill_buckets"] == default["decode_context_buckets"]
    assert chosen["padding"]["tokens"] <= default["padding"]["tokens"] / 2
    assert chosen["padding"]["seconds"] < default["padding"]["seconds"]
    assert chosen["padding"]["wasted_seconds"] < default["padding"]["wasted_seconds"]


def test_chunks_of_the_native_plugin(tmp_path: Path) -> None:
    """With as many graphs prompts pad to smaller chunks; with more, contexts have buckets."""
    path = tmp_path / "trace"
    trace(path, "azure", 0.7)
    same = planned(path, "--instance", "trn2.48xlarge", "--tensor", "8")
    more = planned(path, "--instance", "trn2.48xlarge", "--tensor", "8", "--graphs", "20")
    assert same["default"]["prefill_buckets"] == [2048]
    assert same["default"]["graphs"] == same["chosen"]["graphs"] == 1 + 4
    assert same["chosen"]["padding"]["prompt_waste"] < same["default"]["padding"]["prompt_waste"]
    assert more["chosen"]["graphs"] <= 20
    assert more["chosen"]["padding"]["tokens"] < same["default"]["padding"]["tokens"] / 2
    flags = more["flags"]
    config = json.loads(flags[flags.index("--additional-config") + 1])["neuron_config"]
    assert [*config["decode_context_length_buckets"], more["max_model_len"]] == (
        more["chosen"]["decode_context_buckets"]
    )
    listed = json.loads((Path(__file__).parents[2] / "data/vllm_neuron/flags.json").read_text())["native"]
    assert config.keys() <= listed["neuron_config"].keys()
    assert {flag for flag in flags if flag.startswith("--")} <= listed["flags"].keys()


def test_what_compiling_takes_is_a_range_and_what_fails_is_said() -> None:
    small = CompileWork(weights=2_000_000_000, parameters=1_000_000_000, graphs=14, workers=1)
    low, high = small.minutes
    assert 0 < low < 14 * 2.5 < high
    at_once = CompileWork(weights=2_000_000_000, parameters=1_000_000_000, graphs=14, workers=8)
    assert at_once.minutes[0] < low
    shown = run(
        "plan", "llama-3.1-8b", "--buckets", "--instance", "trn1.2xlarge", "--tensor", "1", "--max-num-seqs",
        "1",
    )  # fmt: skip
    assert shown.returncode == 0
    assert "32 GiB of host memory" in shown.stdout
    assert "minutes for" in shown.stdout
