"""Frameworks' runs against a server that records, and again against its recordings: the same bytes.

    python -m tests.clients.replayed                     # the three dialects
    python -m tests.clients.replayed litellm --rows tool

Exits with 1 where an answer that a client heard is not there the second time, byte for byte, where another
came, or where a row had another end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.run import CLIENTS, NOT_RUN, Client, model_flags, tried
from tests.servers import served

FRAMEWORKS = (
    *("langchain", "litellm", "openai_agents"),
    *("pydantic_ai", "pydantic_ai-responses", "pydantic_ai-messages"),
)
RULES = """
[[rule]]
path = "$.messages[*].tool_calls[*].id"
regex = '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'

[[rule]]
path = "$.messages[*].tool_call_id"
regex = '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
"""
"""The ids that langchain draws for examples of calls, different in each run."""
OTHERS = tuple(one.name for one in CLIENTS if one.task == "generate" and not one.of_node)


@dataclass(frozen=True)
class Run:
    """The answers that a client received, and the results of its rows."""

    heard: Counter[str]
    rows: Counter[tuple[str, str]]

    @classmethod
    def of(cls, client: Client, rows: str, file: Path, *flags: object) -> Run:
        file.touch()
        with served(*flags, anew=True) as server:
            results = tried(client, server.url, rows, heard=file).results
            assert server.end() == 0
        heard = Counter(file.read_text().splitlines())
        return cls(heard, Counter((one.row, one.outcome) for one in results))


def replayed(client: Client, rows: str) -> bool:
    """Prints how two runs of a client compare; returns whether they are the same."""
    with TemporaryDirectory() as folder:
        tapes, files = Path(folder) / "tapes", [Path(folder) / name for name in ("live", "again")]
        rules = Path(folder) / "rules.toml"
        rules.write_text(RULES)
        redact = ("--record-redact", rules)
        models = model_flags(client.task, Path(folder))
        live = Run.of(client, rows, files[0], *models, "--record", tapes, *redact)
        again = Run.of(client, rows, files[1], "--replay", tapes, *redact)
        recorded = len(list(tapes.glob("*.yaml")))
    size = sum(json.loads(line)["bytes"] * times for line, times in live.heard.items())
    heard = f"{live.heard.total()} answers of {size} bytes"
    print(f"{client.name} {client.version()}: {live.rows.total()} rows, {heard}")
    print(f"  {recorded} recorded, {(live.heard & again.heard).total()} the same in the replay")
    for what, first, second in (("heard", live.heard, again.heard), ("rows", live.rows, again.rows)):
        for name, there in (("live alone", first - second), ("replayed alone", second - first)):
            for each in list(there)[:10]:
                print(f"  {what}, {name}: {each}")
    ran = bool(live.heard) and all(outcome != NOT_RUN for _, outcome in live.rows)
    return ran and live == again


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clients", nargs="*", choices=[[], *OTHERS], help=f"default: {', '.join(FRAMEWORKS)}")
    parser.add_argument("--rows", default="", help="only those that have this in their titles")
    asked = parser.parse_args()
    chosen = [one for one in CLIENTS if one.name in (asked.clients or FRAMEWORKS)]
    same = [replayed(one, asked.rows) for one in chosen]
    return int(not all(same))


if __name__ == "__main__":
    sys.exit(main())
