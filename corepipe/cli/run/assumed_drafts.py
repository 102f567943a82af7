"""Assumptions on speculative decoding, for commands that compute no text (`--speculative-config`)."""

from __future__ import annotations

from corepipe.engine.assembly.draft_plan import draft_architecture, draft_graph, no_way_back
from corepipe.engine.speculative_config import SpeculativeConfig, read_speculation
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.formats import FORMATS
from corepipe.simulation.simulate import NO_TEXTS


def assumed_drafts(given: str | None, model: Architecture) -> SpeculativeConfig | None:
    """Reads what is assumed of drafts for this model; None where nothing is.  Raises UserError."""
    if given is None:
        return None
    graph = model.graph(FORMATS["bf16"])
    if not graph.generates:
        raise _refused(f"--speculative-config: {graph.name} generates no tokens that could be drafted")
    if graph.is_recurrent:
        raise _refused(f"--speculative-config: {no_way_back(graph)}")
    try:
        found = read_speculation(given)
    except ValueError as error:
        raise _refused(f"--speculative-config: {error}") from error
    if found.synthetic_rates is None:
        raise _refused(NO_TEXTS)
    if found.model is not None:
        draft = draft_architecture(found.model)
        draft_graph(draft, model.graph(FORMATS["bf16"], min(model.max_positions, draft.max_positions)))
    return found


def _refused(why: str) -> UserError:
    return UserError(why, "speculative_config")
