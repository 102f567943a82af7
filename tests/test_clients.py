"""The verdicts of `make clients` on rows: passed, failed, explained.  It alone runs the clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.rows import RowResult, Rows, chain, raises
from tests.clients.run import CLIENTS, HERE, Tried, document, table
from tests.clients.scripted import Script, call, pieces, write_scripted
from tests.servers import served


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


@given(st.text(alphabet="ab c", max_size=60), st.sets(st.text(alphabet="ab ", min_size=1, max_size=3)))
def test_a_scripts_pieces_are_the_text_and_no_token_has_one_already(text: str, known: set[str]) -> None:
    if text in known:
        with pytest.raises(ValueError, match="cannot say"):
            pieces(text, dict.fromkeys(known, 0))
        return
    cut = pieces(text, dict.fromkeys(known, 0))
    assert "".join(cut) == text
    assert len(set(cut) - known) == len(cut)


def test_a_scripted_model_calls_and_answers(tmp_path: Path) -> None:
    first = "<think>\n\u5929\u6c17?\n</think>\n\nI look. " + call("look", at="a\u2603")
    texts = {0: first, 2: "Two are enough."}
    model = write_scripted(tmp_path / "scripted", Script(texts, aside="A note."))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    chat: list[dict[str, Any]] = [{"role": "user", "content": "Look."}]
    with served(model) as server:

        def answer(**more: Any) -> dict[str, Any]:
            asked = {"model": server.model, "messages": chat, **more}
            return dict(server.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"])

        assert answer()["content"] == "A note."
        for at in range(2):
            called = answer(tools=tools)
            assert (called["reasoning"], called["content"]) == ("\u5929\u6c17?", "I look.")
            (made,) = called["tool_calls"]
            assert json.loads(made["function"]["arguments"]) == {"at": "a\u2603"}
            chat += [called, {"role": "tool", "tool_call_id": made["id"], "content": f"seen {at}"}]
        assert answer(tools=tools)["content"] == "Two are enough."
