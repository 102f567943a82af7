"""The drafts of a request: from its client, its grammar, its own text, or a smaller model, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Protocol

from corepipe.engine.batch.arrays import derive_seed
from corepipe.engine.batch.requests import SampledRequest
from corepipe.engine.drafters.draft_cache import DraftProgress
from corepipe.engine.drafters.proposers import GrammarProposer, NGramProposer, PredictionProposer
from corepipe.engine.drafters.synthetic import SyntheticDrafter
from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.scheduler.request import Request

ROW_COST = 0.1
"""The cost of another row, as a share of a step of one row: a draft token must be at least so likely to be
worth it. On the host 0.04 to 0.08, as weights are read once for up to 14 rows (`benchmarks/step.py`), and the
cost of the draw."""

MEMORY = 0.85
"""The weight of earlier drafts in the acceptance rate, reduced by this factor after each batch that had
some."""

PROBE_TOKENS = 32
"""After a rejected draft, another is tried after so many tokens."""


class DraftDepth:
    """Follows how often drafts were accepted. The n-th token of a draft is accepted with the n-th power of
    the chance of one, and is proposed while that is more than its `cost`, as a share of a step of one row."""

    def __init__(self, most: int, cost: float = ROW_COST) -> None:
        self._most = most
        self._cost = cost
        self._right, self._judged = 1.6, 2.0
        self._known = self._probe_at = 0

    def next(self, known: int) -> int:
        """Returns how many tokens to draft after `known` tokens."""
        rate = min(self._right / self._judged, 0.99)
        depth = int(log(self._cost) / log(rate)) if rate > self._cost else 0
        self._known = known
        return min(depth or int(known >= self._probe_at), self._most)

    def verified(self, drafts: int, accepted: int) -> None:
        """Takes in how many of the last draft tokens were accepted; those behind the first rejected one carry
        no information."""
        self._probe_at = self._known + PROBE_TOKENS
        self._right = MEMORY * self._right + accepted
        self._judged = MEMORY * self._judged + min(accepted + 1, drafts)


PREDICTED_TOKENS = 12
"""Tokens of a prediction that are drafted at once, where no number is configured."""


class Proposer(Protocol):
    """One way to draft tokens; see `drafts.Drafter.propose`."""

    def propose(self, request: Request, most: int) -> Sequence[int]: ...


class RequestDrafter:
    """Implements `drafts.Drafter`: takes the draft of the first of its proposers that has one, as deep as its
    earlier drafts were good. Where a draft model drafts for several requests in one go, `followed` is its
    progress in this request, and it comes after the proposers.

    draft_cost: the cost of a token of the draft model, as a share of a step of one row; None: there is no
    draft model. accepted, rejected: by the index of the proposer, how many of its draft tokens were accepted,
    and how many not.
    """

    def __init__(self, proposers: Sequence[Proposer], most: int, draft_cost: float | None = None) -> None:
        self._proposers = proposers
        self._depths = [DraftDepth(most) for _ in proposers]
        self._together = None if draft_cost is None else DraftDepth(most, draft_cost)
        self._last = 0
        self.followed = DraftProgress()
        self.accepted = [0] * (len(proposers) + 1)
        self.rejected = [0] * (len(proposers) + 1)

    @property
    def predicts(self) -> bool:
        """True where its first proposer has the client's prediction."""
        return bool(self._proposers) and isinstance(self._proposers[0], PredictionProposer)

    def propose(self, request: Request, most: int) -> Sequence[int]:
        for place, (proposer, depth) in enumerate(zip(self._proposers, self._depths, strict=True)):
            wanted = min(most, depth.next(request.num_tokens))
            found = _allowed(request, proposer.propose(request, wanted)) if wanted else ()
            if found:
                self._last = place
                return found
        return ()

    def depth_together(self, request: Request, most: int) -> int:
        """Returns how many tokens of the draft model are worth computing, `most` at most."""
        return 0 if self._together is None else min(most, self._together.next(request.num_tokens))

    def take(self, request: Request, draft: Sequence[int]) -> Sequence[int]:
        """Returns as much of the draft model's draft as the grammar allows; the draft model knows of no
        grammar, and its depth learns from a draft that is refused."""
        self._last = len(self._proposers)
        found = _allowed(request, draft)
        if draft and not found and self._together is not None:
            self._together.verified(1, 0)
        return found

    def verified(self, drafts: int, accepted: int) -> None:
        depth = self._together if self._last == len(self._proposers) else self._depths[self._last]
        if depth is not None:
            depth.verified(drafts, accepted)
        self.accepted[self._last] += accepted
        self.rejected[self._last] += drafts - accepted


def speculation_of(
    config: SpeculativeConfig | None, draft_cost: float | None, no_drafts: str | None, request: SampledRequest
) -> RequestDrafter | SyntheticDrafter | None:
    """Returns the drafter of a request; None where it has none. draft_cost: see RequestDrafter. no_drafts:
    why the model can have none (None: it can). Raises ValueError for a prediction then, and where the
    acceptance of drafts is assumed."""
    if request.prediction and no_drafts is not None:
        raise ValueError(f"prediction: {no_drafts}")
    if not request.speculation:
        return None
    rates = None if config is None else config.synthetic_rates
    if rates is not None:
        if request.prediction:
            raise ValueError("prediction: this server assumes how often drafts are accepted; leave it out")
        return SyntheticDrafter(rates, request.seed)
    proposers: list[Proposer] = []
    if request.prediction:
        proposers.append(PredictionProposer(request.prediction))
    if config is not None and request.grammar:
        proposers.append(GrammarProposer())
    if config is not None and config.method == "ngram" and request.max_tokens:
        proposers.append(NGramProposer(*config.lookups))
    if not proposers and draft_cost is None:
        return None
    most = PREDICTED_TOKENS if config is None else config.num_speculative_tokens
    return RequestDrafter(proposers, most, draft_cost)


def synthetic_drafters(
    config: SpeculativeConfig | None, seed: int
) -> Callable[[int], SyntheticDrafter] | None:
    """Makes the drafter of the n-th request that an engine with this `seed` takes on, as for a request that
    brings no seed; None where no acceptance rates are assumed."""
    rates = None if config is None else config.synthetic_rates
    if rates is None:
        return None
    return lambda number: SyntheticDrafter(rates, derive_seed(seed, number))


def _allowed(request: Request, draft: Sequence[int]) -> Sequence[int]:
    """Returns as much of the draft as the request's grammar allows."""
    assert isinstance(request, SampledRequest)
    if not draft or request.constraint is None:
        return draft
    return draft[: request.constraint.allows(draft)]
