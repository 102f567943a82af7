"""Preparation of a load test: the counting of tokens, and a check that the server answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from corepipe.bench.client import ActiveSession, LoadClient, RequestSettings
from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.prompts import Count, PromptVocabulary, Speller, TokenScale, vocabulary
from corepipe.bench.stream import decoded
from corepipe.bench.target import Http, ServerIdentity
from corepipe.errors import UserError
from corepipe.workload.workload import Segment, Session, Turn

if TYPE_CHECKING:  # slow to import, and most load tests need none
    from corepipe.models.text.tokenizer import Tokenizer

PROBES = (8, 24)
"""Words of the prompts that are counted first; short, so that they fit every model."""

PROBE_TOKENS = 2
SHARED_WORDS = 4
PROBE_IDS = 1 << 40
"""Segment ids that no workload uses."""


@dataclass(frozen=True, slots=True)
class PromptSetup:
    """The speller of requests, and a description for people of how prompts get their lengths (`prompts`)."""

    speller: Speller
    prompts: str


@dataclass(frozen=True, slots=True)
class PromptShape:
    """Features of prompts that decide how a server wraps them: conversations, and shared prefixes."""

    turns: bool = False
    shared: bool = False

    def probe(self, number: int, size: int) -> Turn:
        """Returns a short turn of this shape, with `size` words in all."""
        first = PROBE_IDS + 3 * number
        own = size - SHARED_WORDS if self.shared else size
        parts = (
            (Segment(first, SHARED_WORDS), Segment(first + 1, own)) if self.shared else (Segment(first, own),)
        )
        return Turn(parts, PROBE_TOKENS, first + 2)


async def set_up(
    http: Http,
    found: ServerIdentity,
    asking: RequestSettings,
    salt: str,
    tokenizer: tuple[str, Tokenizer] | None,
    shape: PromptShape,
) -> PromptSetup:
    """Chooses the prompts and sends two short requests, which also warm the server up.

    Raises UserError where the server does not answer them.
    """
    by_ids = asking.api == "completions" and not shape.turns
    counting, source = await _counting(http, found, tokenizer)
    words = await vocabulary(counting, source, by_ids=by_ids and tokenizer is None)
    speller = Speller(words, salt)
    counted = [
        await _probe(http, asking, speller, number, shape.probe(number, size))
        for number, size in enumerate(PROBES)
    ]
    if asking.generates and any(outcome.output_tokens == 0 for outcome in counted) and tokenizer is None:
        raise UserError(
            f"{http.target.url} sends no usage, though stream_options.include_usage asks for it; "
            "give --tokenizer, to count its tokens here",
            "tokenizer",
        )
    known = all(outcome.input_tokens for outcome in counted)
    first, second = ((size, outcome.input_tokens) for size, outcome in zip(PROBES, counted, strict=True))
    scale = TokenScale.through(first, second) if known else TokenScale()
    return PromptSetup(speller.scaled(scale), _described(words, scale))


def _described(words: PromptVocabulary, scale: TokenScale) -> str:
    added = f"; the server adds {scale.fixed:.0f}" if scale.fixed and scale.exact else ""
    rate = "" if scale.exact else f"; about {scale.each:.2f} tokens a word, so that lengths are approximate"
    return words.source + added + rate


async def _counting(
    http: Http, found: ServerIdentity, tokenizer: tuple[str, Tokenizer] | None
) -> tuple[Count | None, str]:
    if tokenizer is not None:
        name, local = tokenizer

        async def count_here(text: str) -> Sequence[int]:
            return local.encode(text, add_special_tokens=False)

        return count_here, name

    async def count_there(text: str) -> Sequence[int]:
        return await _tokenize(http, found.model, text) or ()

    works = await _tokenize(http, found.model, " a word") is not None
    return (count_there, "the server's /tokenize") if works else (None, "")


async def _tokenize(http: Http, model: str, text: str) -> Sequence[int] | None:
    """Returns the server's token ids of a text; None: it has no /tokenize in vLLM's shape."""
    asked = {"model": model, "prompt": text, "add_special_tokens": False}
    status, body = await http.ask("/tokenize", asked)
    if status != 200:
        return None
    document = decoded(body)
    tokens = document.get("tokens") if isinstance(document, Mapping) else None
    return tokens if isinstance(tokens, list) and all(isinstance(t, int) for t in tokens) else None


async def _probe(
    http: Http, asking: RequestSettings, speller: Speller, number: int, turn: Turn
) -> RequestOutcome:
    """Sends one short request.  Raises UserError where it is not answered."""
    client = LoadClient(
        http, replace(asking, cancel=0.0, documents=1, run_id=f"{asking.run_id}-probe"), speller
    )
    outcome = await client.send(
        client.prepare(ActiveSession(Session(None, (turn,)), number), 0), perf_counter()
    )
    if outcome.end == "completed":
        return outcome
    raise UserError(f"{http.target.url} does not answer a first request: {_explained(outcome)}", "url")


def _explained(outcome: RequestOutcome) -> str:
    """Returns the error, and the flag that corrects it."""
    said = f"{outcome.error}: {outcome.detail}" if outcome.detail else outcome.error
    if outcome.error in {"401", "403"}:
        return f"{said}; give --api-key"
    if outcome.error == "404":
        return f"{said}; --model names a model, --api another of its APIs"
    if outcome.error in {"400", "422"}:
        return f"{said}; --api asks another API, --extra-body changes fields or, by null, leaves them out"
    return said
