"""What came of guesses of which it was assumed how often they are right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from corepipe.scheduler.drafts import Drafted
from corepipe.serving.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class Guessed:
    """rates: what was assumed, by the place of a guess.  drafts: steps of a request that had guesses; tokens:
    guesses; accepted: those that were right, and accepted_per_position the same by their place."""

    rates: tuple[float, ...]
    drafts: int
    tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]

    @classmethod
    def of(cls, assumed: SpeculativeConfig | None, replicas: Iterable[Drafted]) -> Guessed | None:
        """Of all replicas; None where nothing was assumed."""
        if assumed is None or assumed.assumed_rates is None:
            return None
        found = list(replicas)
        places = zip_longest(*(each.accepted_per_position for each in found), fillvalue=0)
        return cls(
            assumed.assumed_rates,
            sum(each.drafts for each in found),
            sum(each.tokens for each in found),
            sum(each.accepted for each in found),
            tuple(map(sum, places)),
        )

    @property
    def tokens_a_step(self) -> float:
        """Of a request, in steps that had guesses."""
        return 1 + self.accepted / max(1, self.drafts)

    def document(self) -> dict[str, object]:
        """In vLLM's words."""
        return {
            "assumed": True,
            "synthetic_acceptance_rates": list(self.rates),
            "num_spec_steps": self.drafts,
            "num_draft_tokens": self.tokens,
            "num_accepted_tokens": self.accepted,
            "num_accepted_tokens_per_pos": list(self.accepted_per_position),
            "mean_acceptance_length": self.tokens_a_step,
            "draft_acceptance_rate": self.accepted / max(1, self.tokens),
        }
