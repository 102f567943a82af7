"""The same conversation has the same answer in every dialect, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from tests.dialects.cases import Case, cases, write_checkpoint
from tests.dialects.forms import DIALECTS, Dialect, Text, Told
from tests.servers import PATIENCE_SECONDS, served

AT_ONCE = 8


@dataclass
class Seen:
    """The answers with reasoning, calls, a stop string, or an end at the limit, and those that differ."""

    answers: list[Told] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def check(self, case: Case, dialect: Dialect, whole: Told, streamed: Told, first: Told | None) -> None:
        if whole != streamed:
            self.wrong.append(f"{dialect.path}, {case}: {whole}, streamed {streamed}")
        expected = first if first is None or dialect.names_stop else replace(first, stop=None)
        if expected is not None and whole != expected:
            self.wrong.append(f"{dialect.path}, {case}: {whole}, not {expected}")

    def varied(self) -> bool:
        """Tells whether the cases have been worth their time."""
        kinds = ("text", "reasoning", "calls", "cut", "stop")
        return all(
            sum(bool(getattr(one, kind)) for one in self.answers) > len(self.answers) / 20 for kind in kinds
        )


def compared(folder: Path, wanted: Sequence[Case], seed: int) -> Seen:
    """Asks a real server for each case in all dialects, whole and streamed."""
    seen = Seen()
    flags = ("--served-model-name", "made-up", "--threads", 1, "--max-model-len", 4096, "--max-num-seqs", 8)
    with served(write_checkpoint(folder, seed), *flags) as server:
        limits = httpx.Limits(max_connections=AT_ONCE)
        with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS, limits=limits) as http:

            def ask(case: Case) -> None:
                first: Told | None = None
                for dialect in DIALECTS:
                    whole, streamed = dialect.ask(http, case)
                    seen.check(case, dialect, whole, streamed, first)
                    first = first or whole
                assert first is not None
                seen.answers.append(first)
                if case.plain:
                    whole, streamed = Text().ask(http, case)
                    bare = not (first.reasoning or case.schema or "think>" in whole.text)
                    seen.check(case, Text(), whole, streamed, first if bare else None)

            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(ask, wanted))
        assert "Traceback" not in "".join(server.stderr)
    return seen


def test_sixty_requests_are_answered_alike(tmp_path: Path) -> None:
    seen = compared(tmp_path / "model", list(cases(60, seed=1)), seed=1)
    assert not seen.wrong, seen.wrong[:3]
    assert seen.varied()


@pytest.mark.slow
def test_a_thousand_requests_are_answered_alike(tmp_path: Path) -> None:
    for seed in range(2, 7):
        seen = compared(tmp_path / f"model{seed}", list(cases(200, seed)), seed)
        assert not seen.wrong, seen.wrong[:3]
        assert seen.varied()
