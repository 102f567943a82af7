"""The draft model of another one, and whether the two fit."""

from __future__ import annotations

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.registry import Architecture
from corepipe.neuron.compile.memory import Draft
from corepipe.neuron.graph import Graph


def no_way_back(graph: Graph) -> str | None:
    """Returns why a recurrent model has no drafts; None for any other model."""
    if not graph.is_recurrent:
        return None
    return f"{graph.name} keeps one state a sequence, which cannot return past a rejected draft; leave it out"


def draft_architecture(source: str) -> Architecture:
    """Returns the draft model. Raises UserError where there is none of this name."""
    try:
        return registry.architecture(source)
    except UserError as error:
        raise refused_draft(error.message) from error


def refused_draft(why: str) -> UserError:
    """Returns the error of a model that cannot draft for the served one."""
    return UserError(f"--speculative-config: model: {why}", "speculative_config")


def plan_draft(config: EngineConfig, graph: Graph, draft: Architecture | None) -> Draft | None:
    """Returns the draft model of this graph's model on the device, if there is one; `draft` where the caller
    has it. Where another model is timed than the one that it drafts for, their vocabularies may differ.
    Raises UserError as `draft_graph` does."""
    settings = config.speculative_config
    if settings is None or settings.model is None:
        return None
    model = draft or draft_architecture(settings.model)
    same_words = config.timing_model is None or settings.synthetic_rates is not None
    return Draft(draft_graph(model, graph, same_words=same_words))


def draft_graph(model: Architecture, graph: Graph, *, same_words: bool = True) -> Graph:
    """Returns the graph of a model that drafts for that of `graph`, in its format, for as many positions.

    Raises UserError for a model that gives no next token, that has one state a sequence, that takes fewer
    positions, or whose vocabulary has another size.
    """
    longest = graph.max_positions
    found = model.graph(graph.format, min(longest, model.max_positions))
    if not found.generates:
        raise refused_draft(f"{model.name} generates nothing, so that it has no drafts")
    if (why := no_way_back(found)) is not None:
        raise refused_draft(why)
    if same_words and found.vocab_size != graph.vocab_size:
        raise refused_draft(
            f"{model.name} has a vocabulary of {found.vocab_size} tokens, {graph.name} one of "
            f"{graph.vocab_size}: its drafts would be other tokens"
        )
    if found.max_positions < longest:
        raise refused_draft(
            f"{model.name} takes {found.max_positions} tokens, {graph.name} is asked to take {longest}; add "
            f"--max-model-len {found.max_positions}"
        )
    return found
