"""Tokens per second with and without speculative decoding, on given texts, which replace the sampled tokens.

    python benchmarks/speculation.py [MODEL] [--rounds 5] [--streams 1 16] [--tokens 512] [--draft MODEL]

A model of 135M parameters repeats itself under greedy sampling, which flatters drafts; so its own
tokens are replaced by those of texts of known kinds, after they have been computed.  Both engines have the
same weights and take turns every few steps, because a shared machine drifts.  The output is the ratio of
tokens per second after every request has its first, by the clock and by the CPU time of the process.

rewrite: a file of Python, given in the prompt, with one line in 30 new.  json: records of one shape.
prose: English.  own: the model's own tokens at temperature 0.7, on prompts that ask for texts.

--draft: a smaller model drafts instead of n-grams.  A model as its own draft model gains nothing, and shows
the cost of drafts; with 16 streams the host drafts nothing, which shows the cost of having a draft model.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.models import hub, registry
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.neuron.step import Executor, SamplingBatch, StepInputs, StepOutput

ROOT = Path(__file__).resolve().parents[1]
CONTEXT = 256
"""Tokens of the prompt, where it need not hold a file."""

GUESSES = SpeculativeConfig(
    method="ngram", num_speculative_tokens=10, prompt_lookup_min=2, prompt_lookup_max=4
)

DRAFT_GUESSES = 4
"""Draft tokens of a draft model."""

STEPS = 5
"""Steps of one engine before the other's turn."""

FLOORS = {("rewrite", 1): 2.5, ("json", 1): 1.7, ("prose", 1): 0.98, ("own", 1): 0.98}
OF_MANY = 0.99


@dataclass(frozen=True, slots=True)
class Work:
    """A prompt, and the answer to it (None: the model's own)."""

    prompt: list[int]
    answer: list[int] | None


class Forced:
    """Implements `program.Executor`: everything is computed, and then the sampled tokens are replaced by
    the given answer of the request with their seed."""

    def __init__(self, executor: Executor, texts: dict[int, list[int]]) -> None:
        self._executor = executor
        self._texts = texts
        self._rows: dict[int, SamplingBatch | None] = {}

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        ticket = self._executor.submit(inputs, sampling)
        self._rows[ticket] = sampling
        return ticket

    def give_masks(self, ticket: int, masks: np.ndarray) -> None:
        self._executor.give_masks(ticket, masks)

    def wait(self, ticket: int) -> StepOutput:
        output, sampling = self._executor.wait(ticket), self._rows.pop(ticket)
        if sampling is None:
            return output
        drawn = output.tokens.copy()
        for row, (seed, position) in enumerate(zip(sampling.seed, sampling.position, strict=True)):
            if int(seed) in self._texts:
                text = self._texts[int(seed)]
                drawn[row] = text[position] if position < len(text) else 0
        return replace(output, tokens=drawn)

    def close(self) -> None:
        self._executor.close()


class Side:
    """An engine, with speculative decoding or without."""

    def __init__(self, model: str, guesses: SpeculativeConfig | None) -> None:
        config = EngineConfig(model=model, speculative_config=guesses, max_model_len=2048, prefix_cache=False)
        deployment = assemble(config, lambda _what, _done: None)
        self._texts: dict[int, list[int]] = {}
        parts = [replace(p, executor=Forced(p.executor, self._texts)) for p in deployment.replicas]
        self.driver = Driver(replace(deployment, replicas=tuple(parts)))

    def ask(self, works: Sequence[Work], tokens: int) -> None:
        """Submits requests and runs until each has a first token."""
        self._texts.clear()
        for number, work in enumerate(works):
            if work.answer is not None:
                self._texts[number] = work.prompt + work.answer
            sampling = TokenSampling(temperature=0.7 if work.answer is None else 0.0, seed=number)
            self.driver.handle(Submit(str(number), work.prompt, tokens, sampling))
        self.answers: list[list[int]] = [[] for _ in works]
        while not all(self.answers):
            self._turn()
        self._before = self.tokens
        self.seconds = self.cpu_seconds = 0.0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    def work(self) -> None:
        """Runs some of the remaining steps."""
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            self._turn()
        self.seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu

    def a_token(self) -> tuple[float, float]:
        """Returns the seconds per token by the clock, and of the CPUs."""
        made = self.tokens - self._before
        return self.seconds / made, self.cpu_seconds / made

    def _turn(self) -> None:
        if self.driver.busy:
            for output in self.driver.turn():
                self.answers[int(output.id)] += output.tokens


def rewritten(tokenizer: Tokenizer, number: int, tokens: int) -> Work:
    files = sorted((ROOT / "corepipe" / "scheduler").glob("*.py"))
    lines = (files[number % len(files)].read_text() + files[(number + 1) % len(files)].read_text()).split(
        "\n"
    )
    new = [
        f"    changed_{at} = {number + at}" if at % 30 == 7 + number % 20 else line
        for at, line in enumerate(lines)
    ]
    text, answer = (tokenizer.encode("\n".join(one))[: tokens + 40] for one in (lines, new))
    return Work(text, answer[:tokens])


def records(tokenizer: Tokenizer, number: int, tokens: int) -> Work:
    rng = random.Random(number)
    names = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Tony", "Frances", "John", "Leslie"]
    rows = [
        {
            "id": rng.randrange(10_000),
            "name": rng.choice(names),
            "email": f"{rng.choice(names).lower()}{rng.randrange(99)}@example.com",
            "active": rng.random() < 0.5,
            "score": round(rng.uniform(0, 100), 1),
            "tags": rng.sample(["red", "green", "blue", "large", "small"], 2),
        }
        for _ in range(60)
    ]
    ids = tokenizer.encode(json.dumps(rows, indent=1))
    return Work(ids[:CONTEXT], ids[CONTEXT : CONTEXT + tokens])


def prose(tokenizer: Tokenizer, number: int, tokens: int) -> Work:
    pages = ("kernels.md", "pacing.md", "placement.md", "tools.md", "planning.md", "reliability.md")
    text = "\n".join((ROOT / "docs" / name).read_text() for name in pages)
    paragraphs = [p for p in text.split("\n\n") if p[:1].isalpha()]
    random.Random(number).shuffle(paragraphs)
    ids = tokenizer.encode("\n\n".join(paragraphs))
    return Work(ids[:CONTEXT], ids[CONTEXT : CONTEXT + tokens])


def own(tokenizer: Tokenizer, number: int, _tokens: int) -> Work:
    asked = [
        "Write a story about a lighthouse keeper who finds a letter.",
        "Explain how a bicycle stays upright.",
        "Repeat this list and add two lines: apples, pears, plums, cherries, figs.",
        "Write ten JSON records of books with title, author and year.",
    ][number % 4]
    return Work(tokenizer.encode(f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"), None)


KINDS = {"rewrite": rewritten, "json": records, "prose": prose, "own": own}


def _guesses(draft: str | None) -> SpeculativeConfig:
    if draft is None:
        return GUESSES
    return SpeculativeConfig(method="draft_model", model=draft, num_speculative_tokens=DRAFT_GUESSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--draft", metavar="MODEL")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    args = parser.parse_args()
    tokenizer = registry.load(hub.resolve(args.model)).tokenizer()
    off, on = Side(args.model, None), Side(args.model, _guesses(args.draft))
    print("text     streams  clock    CPU  floor  tokens a guess  accepted")
    for kind in args.kinds:
        for streams in args.streams:
            walls, cpus, before = [], [], on.driver.stats()[0]
            for number in range(args.rounds):
                works = [KINDS[kind](tokenizer, number * streams + s, args.tokens) for s in range(streams)]
                off.ask(works, args.tokens)
                on.ask(works, args.tokens)
                while off.driver.busy or on.driver.busy:
                    off.work()
                    on.work()
                assert off.answers == on.answers, "answers differ"
                for ratios, slow, fast in zip((walls, cpus), off.a_token(), on.a_token(), strict=True):
                    ratios.append(slow / fast)
            after = on.driver.stats()[0]
            drafts = after.drafts - before.drafts
            tokens = after.draft_tokens - before.draft_tokens
            accepted = after.accepted_tokens - before.accepted_tokens
            floor = FLOORS.get((kind, streams), OF_MANY)
            clock, cpu = statistics.median(walls), statistics.median(cpus)
            print(
                f"{kind:8} {streams:7} {clock:6.2f} {cpu:6.2f} {floor:6.2f} "
                f"{1 + accepted / max(1, drafts):15.2f} {accepted / max(1, tokens):9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
