"""Counts of drafts with synthetic acceptance: how often they are accepted was assumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.request import Drafted


@dataclass(frozen=True, slots=True)
class SyntheticDrafts:
    """The drafts of a simulation.

    rates: the assumed acceptance by position.  drafts: steps of a request that had draft tokens; tokens:
    draft tokens; accepted: those that were accepted, and accepted_per_position the same by position.
    draft_model: the model that drafts, if that takes time; draft_share: its share of the busy time of cores.
    """

    rates: tuple[float, ...]
    drafts: int
    tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    draft_model: str | None = None
    draft_share: float = 0.0

    @classmethod
    def of(
        cls,
        assumed: SpeculativeConfig | None,
        replicas: Iterable[Drafted],
        timelines: Sequence[Timeline],
        draft_model: str | None,
    ) -> SyntheticDrafts | None:
        """Sums up the drafts of all replicas; returns None where no rates were assumed."""
        if assumed is None or assumed.synthetic_rates is None:
            return None
        found = list(replicas)
        places = zip_longest(*(each.accepted_per_position for each in found), fillvalue=0)
        return cls(
            assumed.synthetic_rates,
            sum(each.drafts for each in found),
            sum(each.tokens for each in found),
            sum(each.accepted for each in found),
            tuple(map(sum, places)),
            draft_model,
            _share(timelines),
        )

    @property
    def tokens_a_step(self) -> float:
        """Returns the tokens that a request gets in a step with drafts, mean."""
        return 1 + self.accepted / max(1, self.drafts)

    def document(self) -> dict[str, object]:
        """Returns the counts under vLLM's names."""
        return {
            "assumed": True,
            **({} if self.draft_model is None else self._drafts()),
            "synthetic_acceptance_rates": list(self.rates),
            "num_spec_steps": self.drafts,
            "num_draft_tokens": self.tokens,
            "num_accepted_tokens": self.accepted,
            "num_accepted_tokens_per_pos": list(self.accepted_per_position),
            "mean_acceptance_length": self.tokens_a_step,
            "draft_acceptance_rate": self.accepted / max(1, self.tokens),
        }

    def _drafts(self) -> dict[str, object]:
        return {"draft_model": self.draft_model, "draft_model_share": self.draft_share}


def _share(timelines: Sequence[Timeline]) -> float:
    """Returns the share of the busy time of cores that goes to a draft model."""
    busy = sum(sum(timeline.busy_seconds) for timeline in timelines)
    drafting = sum(timeline.draft_seconds * timeline.cost.tensor for timeline in timelines)
    return drafting / busy if busy else 0.0
