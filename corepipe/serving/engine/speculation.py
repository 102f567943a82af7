"""Who guesses for a request: what its client predicted, its grammar forces, or its own text says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from corepipe.scheduler.request import Request
from corepipe.serving.engine.drafters.assumed import Assumed
from corepipe.serving.engine.drafters.depth import Depth
from corepipe.serving.engine.drafters.forced import Forced
from corepipe.serving.engine.drafters.ngram import NGram
from corepipe.serving.engine.drafters.prediction import Prediction
from corepipe.serving.engine.requests import SampledRequest
from corepipe.serving.engine.sampling import derive_seed
from corepipe.serving.speculative import SpeculativeConfig

PREDICTED_TOKENS = 12
"""Of a prediction that are computed at once, where nobody has said how many."""


class Guesser(Protocol):
    """One way to guess; see `drafts.Drafter.propose`."""

    def propose(self, request: Request, most: int) -> Sequence[int]: ...


class Speculation:
    """Implements `drafts.Drafter`: the first of its guessers that has an idea, as deep as those of its ideas
    before were good.

    accepted, rejected: by the place of the guesser, how many of its guesses were drawn, and how many not.
    """

    def __init__(self, guessers: Sequence[Guesser], most: int) -> None:
        self._guessers = guessers
        self._depths = [Depth(most) for _ in guessers]
        self._last = 0
        self.accepted = [0] * len(guessers)
        self.rejected = [0] * len(guessers)

    @property
    def predicts(self) -> bool:
        """Whether its first guesser knows what the client has predicted."""
        return isinstance(self._guessers[0], Prediction)

    def propose(self, request: Request, most: int) -> Sequence[int]:
        for place, (guesser, depth) in enumerate(zip(self._guessers, self._depths, strict=True)):
            wanted = min(most, depth.next(request.num_tokens))
            found = _allowed(request, guesser.propose(request, wanted)) if wanted else ()
            if found:
                self._last = place
                return found
        return ()

    def verified(self, drafts: int, accepted: int) -> None:
        self._depths[self._last].verified(drafts, accepted)
        self.accepted[self._last] += accepted
        self.rejected[self._last] += drafts - accepted


def speculation_of(request: SampledRequest, config: SpeculativeConfig | None) -> Speculation | Assumed | None:
    """Who guesses for it; None where nobody is to.  Raises ValueError for a prediction where it is assumed
    how often guesses are right."""
    if not request.speculation:
        return None
    rates = None if config is None else config.assumed_rates
    if rates is not None:
        if request.prediction:
            raise ValueError("prediction: this server assumes how often guesses are right; leave it out")
        return Assumed(rates, request.seed)
    guessers: list[Guesser] = []
    if request.prediction:
        guessers.append(Prediction(request.prediction))
    if config is not None and request.grammar:
        guessers.append(Forced())
    if config is not None and request.max_tokens:
        guessers.append(NGram(config.prompt_lookup_min, config.prompt_lookup_max))
    if not guessers:
        return None
    return Speculation(guessers, PREDICTED_TOKENS if config is None else config.num_speculative_tokens)


def assumed_drafters(config: SpeculativeConfig | None, seed: int) -> Callable[[int], Assumed | None]:
    """Who guesses for the request with a number that an engine with this `seed` takes on, where it is assumed
    how often guesses are right: as for one that brings no seed."""
    rates = None if config is None else config.assumed_rates
    return lambda number: None if rates is None else Assumed(rates, derive_seed(seed, number))


def _allowed(request: Request, guess: Sequence[int]) -> Sequence[int]:
    """As much of it as the request's grammar allows."""
    assert isinstance(request, SampledRequest)
    if not guess or request.constraint is None:
        return guess
    return guess[: request.constraint.allows(guess)]
