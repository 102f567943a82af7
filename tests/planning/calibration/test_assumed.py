"""Tests of the assumptions for values that rows do not state."""

from __future__ import annotations

from corepipe.planning.calibration.assumed import COLUMN, completed

ROW = {"task": "serving-tgi", "model": "llama-3-70b", "batch_size": "4", "metric": "ttft", "users": ""}


def users(*rows: dict[str, str]) -> list[str]:
    return [row.get("users", "") for row in completed(rows)]


def test_loads_of_a_server_double_their_users():
    assert users(ROW, ROW, ROW) == ["1", "2", "4"]
    other = ROW | {"metric": "output_throughput"}
    assert users(ROW, other, ROW, other) == ["1", "1", "2", "2"]
    assert users(ROW, ROW | {"batch_size": "8"}, ROW) == ["1", "1", "2"]


def test_users_that_are_said_stay():
    assert users(ROW | {"users": "5"}, ROW) == ["5", "1"]
    assert users(ROW | {"rate": "2"}, ROW | {"task": "serving"}) == ["", ""]


def test_what_was_assumed_is_said():
    rows = list(completed([ROW, ROW | {"users": "3"}]))
    assert "1 users are assumed" in rows[0][COLUMN]
    assert COLUMN not in rows[1]


def test_a_series_ends():
    """A series is not continued to thousands of users, which no measurement had."""
    assert users(*[ROW] * 13)[10:] == ["1024", "", ""]
