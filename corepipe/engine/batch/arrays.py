"""Requests as arrays: their sampling parameters, tokens and positions, and their tables of KV blocks.

Each request packs its scalars once; a step joins the packed rows. Lists (biases, seen tokens) are kept only
by the requests whose parameters need them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from struct import Struct
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from corepipe.engine.sampling_parameters import TokenSampling, columns_of
from corepipe.neuron.step import AdapterKind, AdapterRows, SamplingBatch
from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.request import Chunk, Request

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

N = TypeVar("N", bound=np.generic)

_COLUMNS = columns_of(TokenSampling)
_VALUES = attrgetter(*_COLUMNS)
_ROW = Struct("=" + "".join(column.kind for column in _COLUMNS.values()))
SCALARS = np.dtype([(column.name, column.kind) for column in _COLUMNS.values()])
"""The scalars of one row, named as in SamplingBatch."""

NO_IDS: Ids = np.empty(0, np.int32)
NO_VALUES: Floats = np.empty(0, np.float32)

_MASK64 = (1 << 64) - 1


def derive_seed(seed: int, number: int) -> int:
    """Returns the seed of the `number`-th request under an engine's `seed`: one splitmix64 step (Steele et
    al. 2014)."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def pack_scalars(params: TokenSampling, seed: int) -> bytes:
    """Packs a drawn row's scalars, of parameters that `requests.to_request` has checked; `seed` modulo
    2**64."""
    row = dict(zip(_COLUMNS, _VALUES(params), strict=True))
    row["top_k"] = max(params.top_k, 0)
    row["logprobs"] = -1 if params.logprobs is None else params.logprobs
    row["seed"] = seed & _MASK64
    return _ROW.pack(*row.values())


def pack_prompt_scalars(top_logprobs: int) -> bytes:
    """Packs the scalars of a prompt's row: nothing is drawn, only the next token's logprob is reported."""
    return pack_scalars(TokenSampling(temperature=0.0, logprobs=top_logprobs), seed=0)


class SeenTokens:
    """Distinct tokens of a sequence, and how often each occurs in the output (0: in the prompt only)."""

    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = sorted(set(prompt))
        self._index = {token: i for i, token in enumerate(distinct)}
        self._ids = np.array(distinct, np.int32)
        self._counts = np.zeros(len(distinct), np.int32)
        self._known = len(prompt)

    def follow(self, tokens: Sequence[int]) -> tuple[Ids, Ids]:
        """Counts the tokens that `tokens`, the whole sequence, has gained; returns ids [n] and counts [n]."""
        for position in range(self._known, len(tokens)):
            self._count(tokens[position])
        self._known = len(tokens)
        size = len(self._index)
        return self._ids[:size], self._counts[:size]

    def follow_with(self, tokens: Sequence[int], drafts: Sequence[int]) -> tuple[Ids, Ids]:
        """Returns the same as `follow` would with the draft known; the draft is not counted for good."""
        ids, counts = self.follow(tokens)
        counts, others = counts.copy(), Counter[int]()
        for token in drafts:
            if token in self._index:
                counts[self._index[token]] += 1
            else:
                others[token] += 1
        more = np.array([*others.items()], np.int32).reshape(-1, 2)
        return np.append(ids, more[:, 0]), np.append(counts, more[:, 1])

    def _count(self, token: int) -> None:
        at = self._index.setdefault(token, len(self._index))
        if at == len(self._ids):
            more = np.zeros(max(16, at), np.int32)
            self._ids, self._counts = np.append(self._ids, more), np.append(self._counts, more)
        self._ids[at] = token
        self._counts[at] += 1


class BannedSequences:
    """The tokens that would complete one of some sequences of tokens."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._always = {one[0] for one in sequences if len(one) == 1}
        self._longer = [(list(one[:-1]), one[-1]) for one in sequences if len(one) > 1]
        self._longest = max((len(start) for start, _ in self._longer), default=0)

    def next(self, request: Request, drafts: Sequence[int] = ()) -> Ids:
        """Returns the tokens that must not follow the tokens of the answer so far and this draft; those of
        the prompt do not count."""
        said = [*request.tokens[max(len(request.prompt), len(request.tokens) - self._longest) :], *drafts]
        ending = {last for start, last in self._longer if said[-len(start) :] == start}
        return np.array(sorted(self._always | ending), np.int32)


class RowLists:
    """The lists of a request's rows: biases, banned tokens and words, seen tokens.

    Stop ids are banned `early`, before `min_tokens`.
    """

    def __init__(
        self,
        request: Request,
        params: TokenSampling,
        bad_words: Sequence[Sequence[int]],
        early: Sequence[int],
    ) -> None:
        self._request = request
        self._banned = BannedSequences(bad_words) if bad_words else None
        bias = sorted(params.logit_bias.items())
        self._bias_ids = np.array([token for token, _ in bias], np.int32)
        self._bias = np.array([value for _, value in bias], np.float32)
        self._early_ids = np.append(self._bias_ids, np.array(early, np.int32))
        self._early_bias = np.append(self._bias, np.full(len(early), -np.inf, np.float32))
        self._seen = SeenTokens(request.prompt) if _penalises(params) else None

    @staticmethod
    def of(
        request: Request,
        params: TokenSampling,
        bad_words: Sequence[Sequence[int]] = (),
        *,
        masked: bool = False,
    ) -> RowLists | None:
        """Returns None where the request needs no lists, as most do. masked: its masks ban the stop ids."""
        early = sorted(request.stop_ids) if request.min_tokens and not masked else []
        needed = params.logit_bias or bad_words or early or _penalises(params)
        return RowLists(request, params, bad_words, early) if needed else None

    def after(self, drafts: Sequence[int]) -> RowLists | DraftRowLists:
        """Returns the lists of the row that draws the token after these draft tokens."""
        return DraftRowLists(self, drafts) if drafts else self

    def bias(self, drafts: Sequence[int] = ()) -> tuple[Ids, Floats]:
        """Returns ids and what to add to their logits at the next draw, or at the draw after a draft."""
        early = self._request.num_generated + len(drafts) < self._request.min_tokens
        ids, values = (self._early_ids, self._early_bias) if early else (self._bias_ids, self._bias)
        if self._banned is None:
            return ids, values
        banned = self._banned.next(self._request, drafts)
        return np.append(ids, banned), np.append(values, np.full(len(banned), -np.inf, np.float32))

    def seen(self, drafts: Sequence[int] = ()) -> tuple[Ids, Ids]:
        """Returns ids and counts for the penalties of the next draw, or of the draw after a draft."""
        if self._seen is None:
            return NO_IDS, NO_IDS
        tokens = self._request.tokens
        return self._seen.follow_with(tokens, drafts) if drafts else self._seen.follow(tokens)


@dataclass(frozen=True, slots=True)
class DraftRowLists:
    """The lists of a row after draft tokens."""

    lists: RowLists
    drafts: Sequence[int]

    def bias(self) -> tuple[Ids, Floats]:
        """See RowLists."""
        return self.lists.bias(self.drafts)

    def seen(self) -> tuple[Ids, Ids]:
        """See RowLists."""
        return self.lists.seen(self.drafts)


def _penalises(params: TokenSampling) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


@dataclass(slots=True)
class LogitRows:
    """The rows of a batch whose logits are computed, as parallel lists; `rows` ascend.

    positions: index of the drawn token in its sequence; chosen: a prompt's next token, or -1 to draw. masked:
    the indices of the rows that have a mask.
    """

    rows: list[int] = field(default_factory=list)
    scalars: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    lists: list[RowLists | DraftRowLists | None] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)

    def draw(self, row: int, scalars: bytes, position: int, lists: RowLists | DraftRowLists | None) -> None:
        self.rows.append(row)
        self.scalars.append(scalars)
        self.positions.append(position)
        self.chosen.append(-1)
        self.lists.append(lists)

    def mask(self) -> None:
        """Gives the last row a mask."""
        self.masked.append(len(self.rows) - 1)

    def report(self, row: int, scalars: bytes, prompt: Sequence[int], position: int) -> None:
        """Adds a prompt's row, whose next token is known: `prompt[position]`."""
        self.rows.append(row)
        self.scalars.append(scalars)
        self.positions.append(position)
        self.chosen.append(prompt[position])
        self.lists.append(None)

    def sampling(self) -> SamplingBatch:
        """Returns the SamplingBatch of these rows; R may be 0."""
        rows = np.frombuffer(bytearray().join(self.scalars), SCALARS)
        bias_offsets, bias_ids, bias_values = self._biases()
        seen_offsets, seen_ids, seen_counts = self._seen()
        return SamplingBatch(
            **{name: np.ascontiguousarray(rows[name]) for name in SCALARS.names or ()},
            position=np.array(self.positions, np.int64),
            chosen=np.array(self.chosen, np.int32),
            masked=self._masked(),
            bias_offsets=bias_offsets,
            bias_ids=bias_ids,
            bias_values=bias_values,
            seen_offsets=seen_offsets,
            seen_ids=seen_ids,
            seen_counts=seen_counts,
        )

    def _masked(self) -> Ids:
        places = np.full(len(self.rows), -1, np.int32)
        places[self.masked] = range(len(self.masked))
        return places

    def _biases(self) -> tuple[Ids, Ids, Floats]:
        if not any(self.lists):
            return np.zeros(len(self.rows) + 1, np.int32), NO_IDS, NO_VALUES
        return _ragged([lists.bias() if lists else (NO_IDS, NO_VALUES) for lists in self.lists])

    def _seen(self) -> tuple[Ids, Ids, Ids]:
        if not any(self.lists):
            return np.zeros(len(self.rows) + 1, np.int32), NO_IDS, NO_IDS
        return _ragged([lists.seen() if lists else (NO_IDS, NO_IDS) for lists in self.lists])


def _ragged(pairs: Sequence[tuple[Ids, npt.NDArray[N]]]) -> tuple[Ids, Ids, npt.NDArray[N]]:
    """Returns the offsets [R + 1] of each pair when all are laid end to end, and the two long arrays."""
    offsets = np.cumsum([0, *(len(ids) for ids, _ in pairs)], dtype=np.int32)
    return offsets, np.concatenate([ids for ids, _ in pairs]), np.concatenate([other for _, other in pairs])


INT32 = 4
"""Bytes."""


@dataclass(slots=True)
class BlockTable:
    """A request's block table as int32 bytes, which a step joins with others without touching each entry."""

    data: bytearray = field(default_factory=bytearray)
    preemptions: int = 0

    def follow(self, request: Request) -> bytearray:
        """Adds the request's new blocks to the table; between preemptions blocks are only added, and entries
        of blocks that have been taken away since are not read any more."""
        if self.preemptions != request.num_preemptions:
            self.preemptions = request.num_preemptions
            self.data.clear()
        known = len(self.data) // INT32
        if known < len(request.block_ids):
            self.data += array("i", request.block_ids[known:]).tobytes()
        return self.data


def join_tables(tables: Sequence[bytearray]) -> Ids:
    """Joins the tables to [S, B], B the most blocks that one of the requests has."""
    width = max(map(len, tables))
    joined = bytearray().join([table.ljust(width, b"\0") for table in tables])
    return np.frombuffer(joined, np.int32).reshape(len(tables), -1)


Join = Callable[[Sequence[bytearray]], Ids]
"""Joins the tables of a batch's requests, as the executor takes them."""


def tokens_of(chunks: Sequence[Chunk]) -> Ids:
    """Returns the token ids of all rows [M]."""
    flat: list[int] = []
    for chunk in chunks:
        if chunk.count == 1:
            flat.append(chunk.request.tokens[chunk.start])
        else:
            flat += chunk.request.tokens[chunk.start : chunk.start + chunk.count]
            flat += chunk.drafts
    return np.array(flat, np.int32)


def adapters_of(slots: Sequence[int], starts: Ids) -> Ids:
    """Returns the slot of each row's adapter [M], from that of each chunk; [0] where no row has one."""
    return np.repeat(np.array(slots, np.int32), np.diff(starts)) if max(slots) >= 0 else NO_IDS


def adapter_rows(
    chunks: Sequence[Chunk], slots: Sequence[int], kinds: Mapping[int, AdapterKind]
) -> tuple[AdapterRows, ...]:
    """Returns the rows of each adapter in a batch, and those with logits, from the slot of each chunk."""
    counts: dict[int, tuple[int, int]] = {}
    for chunk, slot in zip(chunks, slots, strict=True):
        if slot >= 0:
            rows, wanted = counts.get(slot, (0, 0))
            counts[slot] = (rows + chunk.count, wanted + (1 + len(chunk.drafts)) * chunk.samples)
    return tuple(AdapterRows(kinds[slot], found) for slot, found in counts.items())


def positions_of(chunks: Sequence[Chunk], starts: Ids) -> Ids:
    """Returns the positions of all rows [M], from the first row [S + 1] of each chunk."""
    if len(chunks) == 1:
        return np.arange(chunks[0].start, chunks[0].start + chunks[0].count, dtype=np.int32)
    offsets = np.array([chunk.start for chunk in chunks], np.int32) - starts[:-1]
    return np.arange(starts[-1], dtype=np.int32) + np.repeat(offsets, np.diff(starts))


def joining(limits: SchedulerConfig) -> Join:
    """Returns the join of tables for a scheduler of these limits: where blocks are given back, tables have
    empty places, and a column for each group."""
    if limits.windows == (None,) and limits.state_span is None:
        return join_tables
    return partial(join_groups, groups=limits.tables)


def join_groups(tables: Sequence[bytearray], groups: int) -> Ids:
    """Joins tables with rows of a block for each group to [groups * S, B]; 0 where a place is empty."""
    rows = join_tables(tables).reshape(len(tables), -1, groups)
    return np.maximum(rows.transpose(2, 0, 1).reshape(groups * len(tables), -1), 0, order="C")
