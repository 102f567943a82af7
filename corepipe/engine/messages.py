"""What crosses the border between the server and an engine, in a process or between two: msgpack frames.

A frame is a 4-byte little-endian length and one encoded message.  Frames over `MAX_FRAME` are refused.
Nothing is pickled.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_FRAME = 64 * 1024 * 1024


class TokenSampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to draw a request's tokens.  Defaults are those of vLLM (facts of the OpenAI API docs).

    Here the parameters are defined; the library adds fields and limits (`params`), and HTTP limits of its own
    (`api.protocol`).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    """Alternatives to report for each token: None = no logprobs, 0 = of the chosen token only."""
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    """What may be drawn; None: every token."""

    @classmethod
    def of(cls, asked: object, **others: object) -> TokenSampling:
        """What `asked` says under these names, but for `others`; with a `top_p` of 0 it is greedy."""
        said: dict[str, Any] = {n: getattr(asked, n) for n in cls.__struct_fields__ if n not in others}
        said.update(others)
        if said["top_p"] == 0:
            said["temperature"] = 0.0
        return TokenSampling(**said)


class Start(msgspec.Struct, frozen=True):
    """The first frame to an engine: an EngineConfig as plain data, and the engine's number.

    A server counts its engines; everything that one tells bears its number.  `tells_prefixes`: the engine
    says what its prefix caches hold.
    """

    config: dict[str, Any]
    epoch: int
    tells_prefixes: bool = False


class Submit(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """A sequence to generate, or (`max_tokens` 0) a text of which the model makes something, and no token.

    `stop_ids` includes eos unless it is to be ignored; a grammar's end never is.

    `owner`: of those who wait each gets as many turns, whoever asked first; empty where there is one alone.

    `bad_words`: sequences of tokens that the answer must not have.

    `generated`: its first tokens, made by an engine that is gone; they count as this one's, and are not told
    again.  `replay`: it has its place in the queue already, so that the queue's bounds do not ask.

    `grammar`: what the answer must be, in llguidance's own text; empty where anything may be answered.

    `prediction`: what the answer may be, or be made of: it comes sooner then, and is the same.

    `speculation`: whether anybody may guess how the answer goes on.

    `told_salt`: what of the `cache_salt` others may know, as their client chose it.

    `second`: the index in the prompt from which on it is the second text of a pair; 0 where there is one.

    `image`: what is read in the place of tokens, [channels, height, width] as fp32 in little-endian order;
    the prompt then has a zero for each row that the model makes of it.
    """

    id: str
    prompt: list[int]
    max_tokens: int
    sampling: TokenSampling = TokenSampling()
    stop_ids: list[int] = []
    min_tokens: int = 0
    priority: int = 0
    cache_salt: str = ""
    told_salt: str = ""
    generated: list[int] = []
    replay: bool = False
    owner: str = ""
    bad_words: list[list[int]] = []
    grammar: str = ""
    prediction: list[int] = []
    speculation: bool = True
    second: int = 0
    image: bytes = b""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Forget these requests; those that are unknown or finished are ignored."""

    ids: list[str]


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Abort everything and exit."""


Command = Submit | Abort | Shutdown


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprob of one token and its best alternatives, best first: [(token, logprob), ...].

    rank: of a prompt's token, how many tokens are as likely at least; 0 for one that was drawn.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]] = []
    rank: int = 0


class DeviceTimes(msgspec.Struct, frozen=True):
    """What the emulated device would have taken for the request, in milliseconds.

    arrived_at_s: when the request came, in seconds on the device's timeline.  The time in the queue is a part
    of that to the first token, and that of the total.  Where nothing is generated, the result stands for the
    first token.
    """

    arrived_at_s: float
    time_in_queue_ms: float
    time_to_first_token_ms: float
    time_per_output_token_ms: float | None
    total_ms: float


class Predicted(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of a prediction that were computed: those that the answer has, and the others."""

    accepted: int
    rejected: int


class Speculated(msgspec.Struct, frozen=True, array_like=True):
    """What came of guesses about one request: steps with guesses by how many of them were right, from none
    on, and guesses in all.  assumed: the engine was told how many are."""

    histogram: list[int]
    tokens: int
    assumed: bool


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """News of one request.

    What was computed for it is in the fields of its kind.  A field that is not there takes no byte of a
    frame, so that another kind costs those who want tokens nothing.

    `values`: of a request that generates nothing what the model made of it, fp32 in little-endian order, in
    `rows` rows of equal width: one, or where each token has its own, one a token.  They come with its end.

    `prompt_logprobs` comes once, with the first token: one entry a prompt token after the first.
    `cached` prompt tokens came from the prefix cache.  `finish_reason` comes with the last news, `device`
    with it, except for a request that has lost an engine.  `error` says why a request was refused or failed
    (finish_reason "error"); `error_kind` is "invalid" where a retry does not help, "overflow" where the model
    has computed no numbers, "constraint" where the answer could not go on as its grammar wants,
    "contradiction" where its `allowed_token_ids` leave nothing of what the grammar allows, and where a retry
    helps "overloaded" (`retry_seconds` from now), "expired" (it has waited too long) or "unavailable".
    `predicted`: so far, of a request that has a prediction.  `speculated` comes with the last news of a
    request that somebody guesses for, except for one that has lost an engine.

    More than 15 fields would cost each frame two bytes more, as its map's head.
    """

    id: str
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    cached: int = 0
    finish_reason: str | None = None
    device: DeviceTimes | None = None
    error: str | None = None
    error_kind: str | None = None
    retry_seconds: int | None = None
    preemptions: int = 0
    values: bytes = b""
    rows: int = 1
    predicted: Predicted | None = None
    speculated: Speculated | None = None


class FleetOutput(Output, frozen=True):
    """The last news of a request, as the front of a fleet tells its server: in no frame.

    `machines`: those that have computed for the request, one after the other.
    """

    machines: list[str] = []


class StageWork(msgspec.Struct, frozen=True, array_like=True):
    """What each core of a stage has done by the cost model, estimated as `timing.activity` says.

    `engine_seconds` are in the order of `chips.hardware.ENGINES`; `memory_bytes` went to and from device
    memory.
    """

    engine_seconds: list[float]
    flops: float
    memory_bytes: float


class StepPace(msgspec.Struct, frozen=True, array_like=True):
    """How the host kept the device's pace in a step.

    Device seconds since the step before was due: those without work, and from there until this one was due.
    Host seconds by which it came too late.
    """

    idle_seconds: float
    device_seconds: float
    behind_seconds: float


class Stats(msgspec.Struct, frozen=True):
    """Gauges and counters of one replica; counters count since the start.

    `core_busy_seconds` is emulated device time, one entry a core of the replica; `work` has one a stage.
    `iteration_tokens` are the batch sizes (in tokens) since the last Stats; `step_seconds` are the emulated
    times of the same batches: on the device, and from the scheduler's hand to the tokens; `paces` are theirs,
    where the device sets one.  `compile_seconds` and `mask_seconds` are host times since the last Stats: of
    each grammar that was compiled, and of each token's mask.
    """

    replica: int
    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_held: int
    blocks_cached: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    prompt_tokens_cached: int
    generation_tokens: int
    steps: int
    host_busy_seconds: float
    device_busy_seconds: float
    device_now_seconds: float
    late_steps: int
    core_busy_seconds: list[float]
    iteration_tokens: list[int] = []
    work: list[StageWork] = []
    step_seconds: list[tuple[float, float]] = []
    overflows: int = 0
    """Requests that ended because what the model gave was not numbers."""
    paces: list[StepPace] = []
    constraint_failures: int = 0
    """Requests that ended because their grammar allowed no token, or came to a limit."""
    held: int = 0
    """Those of the waiting ones that may not start before their grammar is compiled."""
    compile_seconds: list[float] = []
    mask_seconds: list[float] = []
    padded_tokens: int = 0
    """Rows that the device computed beside those of tokens, as its graphs are of fixed sizes; counted where
    nothing is generated."""
    drafts: int = 0
    """Guesses of how an answer goes on, of a token at least, that were computed."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Of these, those that were drawn."""
    accepted_per_position: list[int] = []
    """The same by place in their guess, as far as any was right."""

    def stage_work(self, core: int) -> StageWork:
        """What a core of the replica has done; nothing, where nothing was counted."""
        if not self.work:
            return StageWork([], 0.0, 0.0)
        return self.work[core * len(self.work) // len(self.core_busy_seconds)]


class Started(msgspec.Struct, frozen=True, array_like=True):
    """Something is about to be computed for a request; its tokens are drawn with `seed`."""

    id: str
    seed: int


KEY_BYTES = 8
"""Of a block's key, in Prefixes."""


class Prefixes(msgspec.Struct, frozen=True, array_like=True):
    """Full blocks that an engine finds from now on, and such as it finds no more: keys, one behind the
    other, each the first KEY_BYTES of `Request.block_key`."""

    stored: bytes = b""
    removed: bytes = b""

    @property
    def added(self) -> list[bytes]:
        """Those in `stored`."""
        return _keys(self.stored)

    @property
    def dropped(self) -> list[bytes]:
        """Those in `removed`."""
        return _keys(self.removed)


def _keys(joined: bytes) -> list[bytes]:
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]


class Outputs(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """All news of one step of one replica, or of what is `started` in the next one.

    prefixes: None where nothing has changed, or nobody wants to know.
    """

    outputs: list[Output] = []
    stats: Stats | None = None
    started: list[Started] = []
    epoch: int = 0
    prefixes: Prefixes | None = None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine has loaded.  `placement` is served at /v1/placement as it is; `pid` is its process.

    `threads`: how many compute, and what has limited them, in words.  `task`: what is made of texts.
    `weights`: a hash of what the engine computes with; empty where that is not known.
    `kernels_left_out`: those that this CPU could run, and that were not built.
    """

    placement: dict[str, Any]
    blocks: int
    block_size: int
    max_model_len: int
    isa: str
    load_seconds: float
    pid: int = 0
    threads: str = ""
    task: str = "generate"
    weights: str = ""
    kernels_left_out: list[str] = []


class LoadProgress(msgspec.Struct, frozen=True, tag="Progress"):
    """How far loading is, 0 to 1."""

    what: str
    done: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot go on; `user_error` tells a wrong input (exit 2) from our fault (exit 1)."""

    message: str
    user_error: bool


Event = Outputs | Ready | LoadProgress | Failed
