"""The best number of batches in which a replica's sequences go through its pipeline.

In a round every sequence that generates gets one token.  Decoding is bound by reading weights, which each
batch does anew, so more batches than keep the stages busy only make the round longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel

CONTEXT_STEPS = 8
"""Steps to which contexts are rounded between a power of two and the next."""

AS_QUICK = 1.002
"""Factor up to which a round counts as quick as the quickest."""

AS_LONG = 1.02
"""The same as AS_QUICK, for rare cases."""


class Round(NamedTuple):
    """One token for each sequence, in `batches`, takes `seconds`."""

    batches: int
    seconds: float


class _BatchGroup(NamedTuple):
    """`number` batches of `shape`; `stages`: seconds in each stage while other batches are in flight."""

    shape: StepShape
    number: int
    stages: list[float]


class Rounds:
    """The rounds of one replica, as its `timeline.Timeline` would run them without end."""

    def __init__(self, cost: CostModel, profile: RuntimeProfile) -> None:
        self._cost = cost
        self._host_seconds = profile.host_seconds
        self._most = cost.stages + 1 if cost.stages > 1 else 1
        self._rounds: dict[tuple[int, int], Round] = {}
        self._with_prompts: dict[tuple[int, int, int], int] = {}

    def generating_batches(self, sequences: int, tokens: int) -> int:
        """Returns the number of batches in which `sequences`, with `tokens` tokens of context in all, get a
        token each the soonest."""
        return self.best(sequences, _rounded(-(-tokens // sequences))).batches

    def batches_with_prompts(self, sequences: int, tokens: int, prompt: int) -> int:
        """Returns the best number of batches in flight where so many sequences generate, or none, and a batch
        could hold `prompt` tokens of prompts."""
        context = _rounded(-(-tokens // sequences)) if sequences else 0
        key = (sequences, context, _rounded(prompt))
        if key not in self._with_prompts:
            generating = self.best(sequences, context).batches if sequences else 0
            apart = not sequences or self._apart(sequences, context, _rounded(prompt))
            self._with_prompts[key] = (
                max(generating, self._prompts(_rounded(prompt))) if apart else generating
            )
        return self._with_prompts[key]

    def best(self, sequences: int, context: int) -> Round:
        """Returns the quickest round of `sequences` with `context` tokens each; of equally quick ones the one
        with the fewest batches, since a prompt delays every batch behind it.

        One batch per stage is quickest as a rule, as their cores share arithmetic and KV cache; one more
        where the host's time, which nothing else hides, is longer than another batch.  One batch in all is
        never slower than a single stage except for the transfers.
        """
        if (sequences, context) not in self._rounds:
            rounds = [
                Round(n, self._seconds(self._generating(n, sequences, context)))
                for n in range(1, min(sequences, self._most) + 1)
            ]
            least = min(r.seconds for r in rounds)
            self._rounds[sequences, context] = next(r for r in rounds if r.seconds <= AS_QUICK * least)
        return self._rounds[sequences, context]

    def _prompts(self, tokens: int) -> int:
        """Returns the number of batches in flight, of so many tokens each, with the highest throughput."""
        prompt = self._kind(StepShape.of([(0, tokens)], logit_rows=1))
        return min(range(1, self._most + 1), key=lambda n: self._seconds([prompt._replace(number=n)]) / n)

    def _apart(self, sequences: int, context: int, tokens: int) -> bool:
        """Returns True if a prompt's tokens in a batch of their own delay generating sequences no longer than
        in their batches: cores that share a memory read weights more slowly where more than one batch is
        in flight."""
        batches = self._generating(self.best(sequences, context).batches, sequences, context)
        first, others = batches[0], [batches[0]._replace(number=batches[0].number - 1), *batches[1:]]
        among = self._kind(_beside(first.shape, max(0, tokens - first.shape.rows)))
        apart = self._kind(StepShape.of([(0, tokens)], logit_rows=1))
        return self._seconds([*batches, apart]) <= AS_LONG * self._seconds([among, *others])

    def _generating(self, batches: int, sequences: int, context: int) -> list[_BatchGroup]:
        """Returns batches of the same size, or of sizes that differ by one, the larger first."""
        smaller, larger = divmod(sequences, batches)
        kinds = [self._kind(StepShape.decode(smaller, context), batches - larger)]
        return [self._kind(StepShape.decode(smaller + 1, context), larger), *kinds] if larger else kinds

    def _kind(self, shape: StepShape, number: int = 1) -> _BatchGroup:
        return _BatchGroup(shape, number, self._cost.stage_seconds(shape))

    def _seconds(self, kinds: Sequence[_BatchGroup]) -> float:
        """Returns the seconds of a round: batches follow one another at the pace of the slowest stage or of
        the host, and none starts again before it has ended."""
        count = sum(kind.number for kind in kinds)
        if count == 1:
            return max(
                self._way(kind, self._cost.lone.stage_seconds(kind.shape)) for kind in kinds if kind.number
            )
        stages = zip(*([kind.number * seconds for seconds in kind.stages] for kind in kinds), strict=True)
        way = max(self._way(kind, kind.stages) for kind in kinds if kind.number)
        return max(way, count * self._host_seconds, *map(sum, stages))

    def _way(self, kind: _BatchGroup, stages: Sequence[float]) -> float:
        """Returns the seconds from the host's work on a batch to its tokens."""
        moved = sum(self._cost.transfers(kind.shape))
        return self._host_seconds + moved + sum(stages) + self._cost.sampling_seconds(kind.shape)


def _beside(batch: StepShape, prompt: int) -> StepShape:
    """Returns a batch of generating sequences with so many tokens of a prompt added."""
    return StepShape(
        (batch.rows + prompt, batch.logit_rows + 1),
        batch.sequences + 1,
        batch.kv_tokens + prompt,
        batch.attended + prompt * (prompt + 1) // 2,
    )


def _rounded(context: int) -> int:
    """Rounds up to the next of CONTEXT_STEPS steps between powers of two."""
    step = max(1, (1 << (context - 1).bit_length()) // (2 * CONTEXT_STEPS))
    return -(-context // step) * step
