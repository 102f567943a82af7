from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from corepipe.cli.output.common import check_writable, progress_bar, write_result
from corepipe.errors import UserError
from tests.servers import until


def test_logs_get_a_line_for_each_thing_that_is_done() -> None:
    log = io.StringIO()
    with progress_bar(Console(file=log)) as report:
        for done in (0.0, 0.5, 1.0):
            report("packing weights", done)
        report("binding", 0.0)
    assert log.getvalue() == "packing weights\nbinding\n"


def test_logs_get_notes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = io.StringIO(), iter([0.0, 1.0, 3.5, 4.0, 7.0])
    monkeypatch.setattr("corepipe.cli.output.common.monotonic", lambda: next(clock))
    with progress_bar(Console(file=log)) as report:
        for number in range(5):
            report("searching", 0.0, f"{number} tried")
    assert log.getvalue() == "searching: 0 tried\nsearching: 2 tried\nsearching: 4 tried\n"


def test_logs_are_told_how_far_it_is_where_nothing_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what is done tells nothing of itself for minutes."""
    monkeypatch.setattr("corepipe.cli.output.common.SILENT_SECONDS", 0)
    log = io.StringIO()
    with progress_bar(Console(file=log)) as report:
        report("predicting the steps", 0.5)
        until(lambda: "so far" in log.getvalue())
    lines = log.getvalue().splitlines()
    assert lines[0] == "predicting the steps"
    assert set(lines[1:]) == {"predicting the steps: 50%, 0 s so far"}


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    screen = io.StringIO()
    with progress_bar(Console(file=screen, force_terminal=True, width=100)) as report:
        report("packing weights", 0.5)
    assert "packing weights" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")


def test_results_can_be_written_or_it_is_said_before_the_work(tmp_path: Path) -> None:
    check_writable("--output", None)
    check_writable("--output", tmp_path / "new.json")
    for path, said in ((tmp_path, "is a directory"), (tmp_path / "no" / "x", "there is no directory")):
        with pytest.raises(UserError, match=f"--output .*{said}"):
            check_writable("--output", path)
        with pytest.raises(UserError, match="--output"):
            write_result("--output", path, "text")


def test_a_result_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(UnicodeEncodeError):
        write_result("--output", path, "new \ud800")
    assert path.read_text() == "old"
    write_result("--output", path, "new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    link = tmp_path / "out"
    link.symlink_to("/dev/null")
    write_result("--output", link, "text")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(UserError, match="--output /dev/full: No space"):
        write_result("--output", Path("/dev/full"), "text")


def test_a_bar_keeps_its_figures_beside_a_long_note() -> None:
    screen, note = io.StringIO(), "81 of 108 left, best 2.274 $/h (3 x inf2.xlarge, tensor 2, int8-weights)"
    with progress_bar(Console(file=screen, force_terminal=True, width=80)) as report:
        report("searching", 0.5, note)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "searching " in shown
    assert " 50% 0:00:0" in shown
    assert set(note.split()) <= set(shown.split())
