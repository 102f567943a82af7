"""The verdicts of `make clients` on rows: passed, failed, explained.  It alone runs the clients."""

from __future__ import annotations

import json

import pytest

from tests.clients.rows import RowResult, Rows, chain, raises
from tests.clients.run import CLIENTS, HERE, Tried, document, table


class Refusal(Exception):
    """An error of status 400, as the SDKs raise it."""

    def __init__(self, status: int, param: str) -> None:
        super().__init__("refused")
        self.status_code = status
        self.param = param


def outcomes(capsys: pytest.CaptureFixture[str], rows: Rows) -> list[tuple[str, str]]:
    rows.run()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(one["row"], one["outcome"]) for one in told]


def test_a_row_passes_if_it_returns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows()

    @rows
    def fine() -> None:
        """fine"""

    @rows
    async def fine_later() -> None:
        """fine, async"""

    @rows
    def wrong() -> None:
        """wrong"""
        raise AssertionError("because")

    @rows
    async def wrong_later() -> None:
        """wrong, async"""
        raise AssertionError("because")

    expected = [
        ("fine", "passed"),
        ("fine, async", "passed"),
        ("wrong", "failed"),
        ("wrong, async", "failed"),
    ]
    assert outcomes(capsys, rows) == expected


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (Refusal(400, "tools[0].type"), "explained"),
        (Refusal(400, "model"), "failed"),
        (Refusal(500, "tools"), "failed"),
        (ValueError("tools"), "failed"),
        (None, "failed"),
    ],
)
def test_a_row_is_explained_if_the_field_is_refused_and_only_then(
    capsys: pytest.CaptureFixture[str], raised: Exception | None, outcome: str
) -> None:
    rows = Rows()

    @rows.refused("tools", "nobody has it")
    def refused() -> None:
        if raised is not None:
            raise RuntimeError("a framework's own") from raised

    assert outcomes(capsys, rows) == [("refused", outcome)]


def test_errors_stand_for_others() -> None:
    inner = Refusal(400, "a")
    with raises(RuntimeError) as caught:
        raise RuntimeError from inner
    assert list(chain(caught.error)) == [caught.error, inner]
    with raises(AssertionError), raises(ValueError):
        pass


def test_the_table_has_every_row_that_did_not_pass() -> None:
    results = [
        RowResult("a", "passed"),
        RowResult("b", "explained", "no ears"),
        RowResult("c", "failed", "no eyes"),
    ]
    all_tried = [Tried(CLIENTS[0], results), Tried(CLIENTS[1], [RowResult("all rows", "not run", "no node")])]
    text = table(all_tried)
    assert "| 1 | 1 | 1 | 0 |" in text
    assert "| 0 | 0 | 0 | 1 |" in text
    for why in ("no ears", "no eyes", "no node"):
        assert why in text
    assert [len(one["rows"]) for one in json.loads(document(all_tried))] == [3, 1]


def test_every_client_has_its_file_and_its_version() -> None:
    for client in CLIENTS:
        assert (HERE / ("node" if client.of_node else "") / client.file).is_file()
        assert client.version()


def test_what_cannot_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    npm = next(client for client in CLIENTS if client.of_node)
    with pytest.raises(LookupError, match="no node"):
        npm.command()
