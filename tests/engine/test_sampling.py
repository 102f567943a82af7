from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corepipe
from corepipe.engine.batch.arrays import SCALARS, LogitRows, RowLists, SeenTokens, derive_seed, pack_scalars
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.scheduler.request import Request

tokens = st.lists(st.integers(0, 30), max_size=80)


@settings(deadline=None)
@given(tokens, st.lists(tokens, max_size=6))
def test_seen_tokens_counts_what_was_generated(prompt: list[int], steps: list[list[int]]) -> None:
    seen = SeenTokens(prompt)
    sequence = list(prompt)
    for step in steps:
        sequence += step
        ids, counts = seen.follow(sequence)
        generated = Counter(sequence[len(prompt) :])
        expected = {token: generated[token] for token in sequence}
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected


def test_stop_ids_are_banned_until_min_tokens() -> None:
    request = Request("a", [1, 2], 4, stop_ids=frozenset({9, 7}), min_tokens=2)
    lists = RowLists.of(request, TokenSampling(logit_bias={5: 1.5}))
    assert lists is not None
    for generated in range(4):
        ids, values = lists.bias()
        expected = {5: 1.5} | ({7: -np.inf, 9: -np.inf} if generated < 2 else {})
        assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == expected
        request.append(3)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), max_size=8),
)
def test_bad_words_ban_what_would_complete_them(
    words: list[list[int]], prompt: list[int], answer: list[int]
) -> None:
    """The end of the prompt does not matter: only in the answer is a word banned."""
    request = Request("a", prompt, 20)
    lists = RowLists.of(request, TokenSampling(logit_bias={9: 2.0}), words)
    assert lists is not None
    for said in range(len(answer) + 1):
        ids, values = lists.bias()
        begun = answer[:said]
        expected = {
            word[-1] for word in words if begun[said - len(word) + 1 :] == word[:-1] and len(word) <= said + 1
        }
        told = dict(zip(ids.tolist(), values.tolist(), strict=True))
        assert told == {9: 2.0} | dict.fromkeys(expected, -np.inf)
        if said < len(answer):
            request.append(answer[said])


def test_rows_become_arrays_with_lists_where_they_were_asked_for() -> None:
    penalised = Request("a", [4, 4, 6], 9)
    penalised.append(6)
    penalised.append(8)
    wanted = LogitRows()
    wanted.report(0, pack_scalars(TokenSampling(logprobs=2), 0), [1, 2, 3], 1)
    params = TokenSampling(
        temperature=0.5, top_p=0.75, top_k=-1, min_p=0.25, presence_penalty=1.0, logprobs=0
    )
    wanted.draw(3, pack_scalars(params, -1), 5, RowLists.of(penalised, params))
    wanted.draw(4, pack_scalars(TokenSampling(top_k=7), 3), 2, None)
    batch = wanted.sampling()
    assert batch.temperature.tolist() == [1.0, 0.5, 1.0]
    assert batch.top_p.tolist() == [1.0, 0.75, 1.0]
    assert batch.min_p.tolist() == [0.0, 0.25, 0.0]
    assert batch.top_k.tolist() == [0, 0, 7]
    assert batch.repetition.tolist() == [1.0, 1.0, 1.0]
    assert batch.presence.tolist() == [0.0, 1.0, 0.0]
    assert batch.seed.tolist() == [0, 2**64 - 1, 3]
    assert batch.position.tolist() == [1, 5, 2]
    assert batch.top_logprobs.tolist() == [2, 0, -1]
    assert batch.chosen.tolist() == [2, -1, -1]
    assert batch.bias_offsets.tolist() == [0, 0, 0, 0]
    assert batch.seen_offsets.tolist() == [0, 0, 3, 3]
    seen = dict(zip(batch.seen_ids.tolist(), batch.seen_counts.tolist(), strict=True))
    assert seen == {4: 0, 6: 1, 8: 1}


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, -5])
def test_derived_seeds_differ_by_request_and_repeat(seed: int) -> None:
    seeds = [derive_seed(seed, number) for number in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= s < 2**64 for s in seeds)
    assert seeds == [derive_seed(seed, number) for number in range(1000)]


def test_splitmix64_is_the_published_one() -> None:
    assert derive_seed(0, 0) == 0xE220A8397B1DCDAF


def test_native_parameters_have_the_names_and_types_of_the_columns() -> None:
    text = (Path(corepipe.__file__).parent / "kernels" / "src" / "executor" / "batch.h").read_text()
    kinds = {"float": "f4", "int32_t": "i4", "int64_t": "i8", "uint64_t": "u8"}
    native = {name: np.dtype(kinds[kind]) for kind, name in re.findall(r"^  X\((\w+), (\w+),", text, re.M)}
    batch = LogitRows().sampling()
    assert native == {name: getattr(batch, name).dtype for name in native}
    lists = {name for name in batch.__slots__ if name.startswith(("bias_", "seen_"))}
    assert native.keys() == {*batch.__slots__} - lists
    assert native.items() >= {name: SCALARS[name] for name in SCALARS.names or ()}.items()
