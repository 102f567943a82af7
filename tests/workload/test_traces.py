from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from corepipe.errors import UserError
from corepipe.workload.traces import TraceFormat, trace_format, trace_workload, write_trace
from corepipe.workload.workload import PrefixTree, Session, Workload
from tests.simulation.simulations import workload

SCHEMAS = tuple(schema for schema in get_args(TraceFormat) if schema != "otel")

MOONCAKE = '{"timestamp": %d, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def read(path: Path, **more: object) -> list[Session]:
    return list(trace_workload(path, **more).sessions())  # type: ignore[arg-type]


def shape(sessions: list[Session]) -> list[tuple[int, int]]:
    return [(turn.prompt_tokens, turn.output_tokens) for session in sessions for turn in session.turns]


def load() -> Workload:
    return workload(60, input_len="uniform:1:3000", prefixes=PrefixTree.parse("2x800,3x300"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_is_written_can_be_read(tmp_path: Path, schema: TraceFormat) -> None:
    path = tmp_path / "trace"
    assert write_trace(path, load(), schema) == 60
    assert trace_format(path) == schema
    found, original = read(path), list(load().sessions())
    assert shape(found) == shape(original)
    first = original[0].start or 0.0
    starts = [session.start for session in found]
    assert starts == pytest.approx([(s.start or 0.0) - first for s in original], abs=1.1e-3)
    assert starts[0] == 0.0


def test_mooncake_keeps_what_is_shared_to_the_block(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    write_trace(path, load(), "mooncake")
    found = [session.turns[0].prompt for session in read(path)]
    original = [session.turns[0].prompt for session in load().sessions()]
    for (a, b), (c, d) in zip(pairwise(found), pairwise(original), strict=True):
        shared = sum(x.tokens for x, y in zip(a, b, strict=False) if x.id == y.id)
        really = sum(x.tokens for x, y in zip(c, d, strict=False) if x.id == y.id)
        assert shared == really // 512 * 512


def test_equal_hashes_after_different_ones_are_not_equal_prefixes(tmp_path: Path) -> None:
    lines = [
        {"timestamp": i, "input_length": 1024, "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate([[1, 2], [3, 2], [1, 2]])
    ]
    path = written(tmp_path, "\n".join(map(json.dumps, lines)))
    a, b, c = [[segment.id for segment in session.turns[0].prompt] for session in read(path)]
    assert a == c
    assert not set(a) & set(b)


def test_a_trace_without_hashes_shares_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, '{"timestamp": 0, "input_length": 9, "output_length": 2}\n' * 2)
    a, b = read(path)
    assert a.turns[0].prompt[0].id != b.turns[0].prompt[0].id


def test_azure_times_of_both_years(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:17:03.9799600,4,5\n2023-11-16 18:17:04.0799600,4,5\n"
    assert [s.start for s in read(written(tmp_path, text))] == pytest.approx([0.0, 0.1], abs=1e-5)
    text = AZURE + "2024-05-10 00:00:00.009930+00:00,4,5\n2024-05-10 00:00:02.009930+00:00,4,5\n"
    assert [s.start for s in read(written(tmp_path, text))] == pytest.approx([0.0, 2.0], abs=1e-5)


def test_a_part_of_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path, BURST + "".join(f"{5 + i},M,3,4,7,x\n" for i in range(9)))
    assert len(read(path, limit=4)) == 4
    assert [s.start for s in read(path, duration=2.0)] == [0.0, 1.0, 2.0]
    assert [s.start for s in read(path, duration=1.0, speed=2.0)] == [0.0, 0.5, 1.0]
    with pytest.raises(UserError, match="--trace-speed"):
        read(path, speed=0.0)


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    plain, spaced = tmp_path / "plain.jsonl", tmp_path / "spaced.jsonl"
    plain.write_text(MOONCAKE % 0 + MOONCAKE % 5)
    spaced.write_text("\n" + MOONCAKE % 0 + " \r\n\n" + MOONCAKE % 5 + "\n")
    assert [s.start for s in read(spaced)] == [s.start for s in read(plain)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (MOONCAKE % 0 + '{"timestamp": 5, "output_length": 5}\n', ["line 2, input_length", "is missing"]),
        (MOONCAKE % 0 + "\nno\n", ["line 3", "not JSON", "one object a line"]),
        ('{"timestamp": 5, "input_length": 1\n', ["line 1", "not JSON"]),
        (MOONCAKE % 9 + MOONCAKE % 5, ["line 2, timestamp", "earlier than the line before", "sort"]),
        (MOONCAKE % -4, ["line 1, timestamp", "before the start"]),
        ((MOONCAKE % 4).replace("700", "7000"), ["line 1, hash_ids", "14", "leave hash_ids out"]),
        ((MOONCAKE % 4).replace("700", "-7"), ["line 1, input_length: -7 tokens", "drop the line"]),
        ((MOONCAKE % 4).replace("700", "7.5"), ["input_length: 7.5"]),
        (AZURE + "2023-11-16 18:17:03,3,\n", ["line 2, GeneratedTokens", "is missing"]),
        (AZURE + "2023-11-16 18:17:03,3\n", ["line 2, GeneratedTokens", "is missing"]),
        (AZURE + "yesterday,3,4\n", ["line 2, TIMESTAMP", "'yesterday' is no time"]),
        (AZURE.replace("ContextTokens", "Context"), ["line 1", "no column 'ContextTokens'"]),
        (AZURE, ["no requests"]),
        (BURST + "5,ChatGPT,472,0,472,Conversation log\n", ["line 2, Response tokens: 0 tokens", "failed"]),
        (BURST + "5,ChatGPT,many,3,472,Conversation log\n", ["Request tokens", "'many' is no number"]),
        ("a,b\n1,2\n", ["no known schema", "mooncake, azure, burstgpt"]),
        ("", ["it is empty"]),
        ("\n \n", ["it is empty"]),
        ('{"timestamp": ' + "[" * 100_000 + "\n", ["line 1", "not JSON"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line_and_what_would_help(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as refused:
        read(path)
    assert str(path) in refused.value.message
    assert [name for name in names if name not in refused.value.message] == []
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "data", [b"\xff\xfeT\x00", AZURE.encode() + b"2023-11-16 18:17:03,\xff,4\n"], ids=["head", "line"]
)
def test_a_file_that_is_no_text(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(UserError, match="is not text in UTF-8"):
        read(path)


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--write-trace .*: Is a directory"):
        write_trace(tmp_path, load(), "azure")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        trace_workload(tmp_path / "nothing")


def test_only_given_times_make_a_trace(tmp_path: Path) -> None:
    for chained in (workload(5, None, users=2), workload(6, turns=2)):
        with pytest.raises(UserError, match="given times"):
            write_trace(tmp_path / "trace", chained, "azure")
