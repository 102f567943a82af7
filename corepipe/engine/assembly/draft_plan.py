"""Which model guesses for another one, and whether it can."""

from __future__ import annotations

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.registry import Architecture
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.draft import Draft


def no_way_back(graph: Graph) -> str:
    """Why nobody guesses for a recurrent model."""
    return (
        f"{graph.name} keeps one state a sequence, which cannot go back to before a wrong guess; leave it out"
    )


def draft_architecture(source: str) -> Architecture:
    """The model that guesses.  Raises UserError where there is none."""
    try:
        return registry.architecture(source)
    except UserError as error:
        raise refused_draft(error.message) from error


def refused_draft(why: str) -> UserError:
    """Of a model that cannot guess for another one."""
    return UserError(f"--speculative-config: model: {why}", "speculative_config")


def plan_draft(config: EngineConfig, graph: Graph, draft: Architecture | None) -> Draft | None:
    """The model that guesses for that of this graph on the device, if one does; `draft` where the caller has
    it.  Where another model is timed than the one that it really guesses for, their words may be others.
    Raises UserError as `draft_graph` does."""
    asked = config.speculative_config
    if asked is None or asked.model is None:
        return None
    model = draft or draft_architecture(asked.model)
    same_words = config.timing_model is None or asked.synthetic_rates is not None
    return Draft(draft_graph(model, graph, same_words=same_words))


def draft_graph(model: Architecture, graph: Graph, *, same_words: bool = True) -> Graph:
    """The graph of a model that guesses for that of `graph`, in its format, for as many positions.

    Raises UserError for a model that gives no next token, that has one state a sequence, that takes fewer
    positions, or whose vocabulary has another size.
    """
    longest = graph.max_positions
    found = model.graph(graph.format, min(longest, model.max_positions))
    if not found.generates:
        raise refused_draft(f"{model.name} generates nothing that could be a guess")
    if found.is_recurrent:
        raise refused_draft(no_way_back(found))
    if same_words and found.vocab_size != graph.vocab_size:
        raise refused_draft(
            f"{model.name} has a vocabulary of {found.vocab_size} tokens, {graph.name} one of "
            f"{graph.vocab_size}: its guesses would be other tokens"
        )
    if found.max_positions < longest:
        raise refused_draft(
            f"{model.name} takes {found.max_positions} tokens, {graph.name} is asked to take {longest}; add "
            f"--max-model-len {found.max_positions}"
        )
    return found
