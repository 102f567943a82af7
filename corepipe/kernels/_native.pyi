"""The native executor's binding.  Shapes: M rows in a batch, S sequences, R rows whose logits are requested.

The module knows Ops, not architectures.  Values are fp32 buffers [max_rows, width], named by index; a Program
with `round_bf16` rounds every stored result to bf16 (round to nearest even).

`python -m tests.kernels.stub` writes the parameters of class `Program` from the compiled module.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

def isas() -> list[str]:
    """Returns the tables of docs/kernels.md that this build and this CPU can run, best first."""

def isa() -> str:
    """Returns the table in use: COREPIPE_ISA, or the best.  Raises ValueError where it is not available."""

def left_out() -> list[str]:
    """Returns the tables that this CPU could run and COREPIPE_TABLES left out of the build, best first."""

def same_bits_isa() -> str:
    """Returns the table of `--bits same`.  Raises ValueError where the build lacks a table that it needs."""

class Matrix:
    """A view of a packed [n, k] matrix in panels of 32 columns (of n).

    kind "int8":  u8 (w + 128) [n/32][k/4][32][4],      y = sum_g scale_x[g] * (x_q . w_q)_g * scale[n]
    kind "int8w": s8 in bf16's layout [n/32][k/2][32][2], y = (x_bf16 . w) * scale[n]
    kind "bf16":  bf16 [n/32][k/2][32][2]
    kind "fp32":  f32 [n/32][k][32]
    n is padded to 32 and k to 64 with zeros (int8: 128).  A view of panels [n0, n0 + n) and of
    k in [k0, k0 + k) of a wider packed matrix shares its bytes: n0 a multiple of 32, k0 of 64.
    Raises ValueError for bytes that are too few, or misaligned views.
    """

    def __init__(self, kind: str, data: U8, scale: F32 | None, n: int, k: int) -> None: ...
    def view(self, n0: int, n: int, k0: int, k: int) -> Matrix: ...
    n: int
    k: int

class KVCache:
    """Paged keys and values of some layers on one core, zeroed at the start.

    dtype: of the Program, "bf16" or "fp32".  Keys and values are stored in it or, with `int8`, as int8 with a
    scale for each.  shared: for latents, one per token, the number of elements that are also a value.
    """

    def __init__(
        self,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        int8: bool = False,
        shared: int = 0,
    ) -> None: ...
    nbytes: int
    def memory(self) -> U8: ...

class StateCache:
    """States of sequences in a core's recurrent Ops, fp32: a block has `elements` numbers, of all these Ops.

    Block i of a sequence's table has the states after its positions, or after the sequence's last one.
    table: the number of the sequence's block table.
    """

    def __init__(self, blocks: int, block_size: int, elements: int, table: int = 0) -> None: ...
    nbytes: int

class Program:
    """Ops of one core, appended in order.  The caller is responsible for indices of values that alias."""

    def __init__(self, widths: Sequence[int], max_rows: int, round_bf16: bool) -> None: ...
    def memory(self) -> list[U8]:
        """Returns the core's activations (for tests)."""
    def embed(self, out: int, table: npt.NDArray[Any]) -> None:
        """table [V, width]: f32, or bf16 as uint16."""
    def patches(self, out: int) -> None:
        """out = the batch's patch of each row."""
    def first_rows(self, out: int, rows: F32) -> None:
        """Replaces the rows of `out` at the first `count` positions of a sequence by rows [count, width]."""
    def add_embedding(
        self, x: int, out: int, table: npt.NDArray[Any], offset: int = 0, by: str = "position"
    ) -> None:
        """out = x + table[position + offset], or by "type"; the table as `embed` takes it."""
    def rms_norm(self, x: int, out: int, gain: F32, eps: float, groups: int = 1) -> None:
        """Normalises each of `groups` parts of len(gain) elements."""
    def layer_norm(
        self, x: int, out: int, gain: F32 | None, bias: F32 | None, eps: float, groups: int = 1
    ) -> None: ...
    def normalize(self, x: int, out: int, eps: float) -> None:
        """x / max(|x|, eps)."""
    def linear(
        self,
        x: int,
        segments: Sequence[tuple[Matrix, F32 | None, int]],
        norm: tuple[F32, float] | None = None,
        layer_norm: tuple[F32 | None, F32 | None, float] | None = None,
        function: str | None = None,
        glu: bool = False,
        factor: float = 1.0,
        residual: int | None = None,
        outer: int | None = None,
    ) -> None:
        """Appends Linears that share x; segments: (matrix, bias, out).  In this order, each step rounded:

        norm = (gain, eps): x is RMS-normalised; layer_norm = (gain, bias, eps).
        function: of x @ w.T + bias; without factor and residual.
        glu: two segments of equal shape, gate and up; out of the first = function(gate) * up.
        factor: multiplies the result.
        residual: one segment only; the value that the result is added to.  outer: the value that this sum is
        added to.
        """
    def rope(self, x: int, out: int, head_dim: int, cos: F32, sin: F32) -> None:
        """Rotates each head; cos, sin [max_positions, rotary_dim / 2]."""
    def attention(
        self,
        q: int,
        k: int,
        v: int,
        out: int,
        cache: KVCache | None,
        layer: int,
        heads: int,
        scale: float,
        window: int | None = None,
        rope: tuple[F32, F32] | None = None,
        q_norm: tuple[F32, float] | None = None,
        k_norm: tuple[F32, float] | None = None,
        softcap: float | None = None,
        slopes: F32 | None = None,
        causal: bool = True,
        biases: F32 | None = None,
        sinks: F32 | None = None,
        table: int = 0,
        chunked: bool = False,
        head_norm: tuple[F32, float] | None = None,
        tempers: F32 | None = None,
    ) -> None:
        """Appends an attention.  `layer` counts within the cache, `table` is the number of the sequence's
        block table for the layer.

        Fused, in this order: per-head norm, rotation, `head_norm` of queries and keys, queries times their
        position's factor of `tempers` [positions], attention.

        chunked: a row attends from the last multiple of `window` on.

        Not causal, without a cache: rows attend to all rows of their sequence, which must be whole; with a
        window to those at most half of it away.  biases [heads * (2 * reach + 1)] are added to scores by how
        far the key is ahead, from -reach on; reach is 64 more than the largest difference of positions.

        softcap: a scaled score s becomes softcap * tanh(s / softcap).  slopes [heads]: the score is then
        reduced by its head's slope for each position that the key lies back.  sinks [heads]: the softmax
        counts one more score per head, without a key.
        """
    def activation(self, function: str, x: int, out: int) -> None: ...
    def glu(self, gate: int, up: int, out: int, function: str = "silu") -> None: ...
    def scale(self, x: int, factor: float, out: int, by: int | None = None) -> None:
        """out = x * factor.  by: a value of width 1, whose rows also multiply the rows of x."""
    def experts(
        self,
        x: int,
        scores: int,
        out: int,
        gate: Sequence[Matrix],
        up: Sequence[Matrix],
        down: Sequence[Matrix],
        top_k: int,
        scoring: str,
        function: str = "silu",
        biases: Sequence[F32] = [],
        nearness: float = 0.0,
        correction: F32 | None = None,
        groups: tuple[int, int] = (1, 1),
        factor: float = 1.0,
        first: int | None = None,
    ) -> None:
        """out = sum of weight * (down(function(gate(x)) * up(x))) over the `top_k` experts with the highest
        scores.  The matrices are one per expert, all of the same shapes.

        scoring: weights are the softmax over all scores, "of_all", or over those of the chosen experts,
        "of_chosen"; or, for each expert, "of_near", over the scores that are less than its own by no more
        than `nearness` times the larger of both sizes, without those of the experts before it; or the sigmoid
        of each score, "sigmoid", or each sigmoid divided by the sum of those of the chosen experts,
        "sigmoid_shares"; `correction` [experts] is added to sigmoids for the choice alone.  "input_sigmoid":
        the sigmoid of each score, which multiplies the expert's input, not its result.
        biases: none, or gate's and up's [experts, n] and optionally down's.
        groups: (number of equal groups of experts, groups that a row chooses from): those with the largest
        score or, for sigmoids, with the largest sum of their two largest.  factor: multiplies all weights.
        first: for a core that has only some of the experts, the number of its first; `out` [rows, top_k * n]
        then has their results, a row's for its i-th expert at i * n, neither weighted nor added.
        """
    def gather_slots(
        self,
        x: int,
        scores: int,
        out: int,
        group: Sequence[int],
        bounds: Sequence[int],
        top_k: int,
        scoring: str,
        nearness: float = 0.0,
        correction: F32 | None = None,
        groups: tuple[int, int] = (1, 1),
        factor: float = 1.0,
    ) -> None:
        """out = the result of `experts` with all experts, to the last bit, from the results x of the programs
        `group`: each program has the experts from one of `bounds` to the next.

        scoring and the arguments after it: as in `experts`.
        """
    def latent_attention(
        self,
        values: tuple[int, int, int],
        out: int,
        cache: KVCache,
        layer: int,
        key_up: Sequence[Matrix],
        value_up: Sequence[Matrix],
        scale: float,
        table: int = 0,
    ) -> None:
        """out = for each head value_up @ the attention of its query over the latents, with scores q.k *
        scale.

        values: q [heads * (rotary + part)], latent and key_rope [rotary], which make a key.  A head's query
        is its rotated elements and key_up @ the others.  key_up: for each head [latent, part]; value_up
        [value, latent].
        """
    def clamp(self, x: int, limit: float, out: int) -> None:
        """out = x limited to -limit .. limit."""
    def convolve(
        self,
        x: int,
        out: int,
        weights: F32,
        bias: F32 | None,
        function: str | None,
        state: tuple[StateCache, int],
    ) -> None:
        """out = function(bias + the sum over k of weights[k] * the row `taps - 1 - k` before), by channel.

        weights [taps, width]; bias [width].  state: a cache, and the offset of the (taps - 1) * width
        elements of it that are kept of a sequence.
        """
    def scan(
        self,
        values: tuple[int, int, int, int],
        out: int,
        of_heads: tuple[F32, F32, F32],
        limits: tuple[float, float],
        states: int,
        state: tuple[StateCache, int],
    ) -> None:
        """step = clamp(softplus(dt + dt_bias)); h = exp(step * rate) * h + (step * x) outer b; out = h . c +
        skip * x, for each head by itself, token after token.

        values: x, heads x head_dim wide, head_dim a multiple of 16; b and c, groups x states, each of
        neighbouring heads; dt, heads.  of_heads: rates, dt_bias and skip.  limits: of a step.  state: as for
        `convolve`, of heads * head_dim * states elements.
        """
    def add(self, a: int, b: int, out: int) -> None: ...
    def select_rows(self, x: int, out: int) -> None: ...
    def pool(self, pooling: str, x: int, out: int) -> None:
        """Pools the rows of each sequence into one, for which a batch then has one logit row: "first",
        "second", "last", "mean", "max", "mean_sqrt_len", "weighted_mean"."""
    def all_reduce(self, x: int, out: int, group: Sequence[int]) -> None:
        """group: indices of the Programs that take part, in rank order."""
    def all_gather(self, x: int, out: int, group: Sequence[int], widths: Sequence[int]) -> None: ...
    def send(self, x: int, peer: int, rows: str = "tokens") -> None: ...
    def receive(self, out: int, peer: int, rows: str = "tokens") -> None: ...

class Pool:
    """The threads of the process, and the queue of batches.  Batches run one after the other."""

    def __init__(self, threads: int, beats: npt.NDArray[np.int64] | memoryview | None = None) -> None:
        """beats [1]: grows at each part of an Op of a running batch; another process may read it."""
    threads: int
    def close(self) -> None: ...

class Adapter:
    """An adapter's matrices for all cores of an executor; its memory is its own.

    parts: core, number of the Linear's matrix among those of the core's Program, (n, k, rank), scale, and a
    and b as `packing.pack_adapter` returns them.  Raises ValueError for sizes that contradict each other.
    """

    def __init__(
        self,
        parts: Sequence[tuple[int, int, tuple[int, int, int], float, npt.NDArray[Any], npt.NDArray[Any]]],
        bf16: bool,
    ) -> None: ...
    @property
    def rank(self) -> int: ...

class Executor:
    """Runs the Programs of a replica; `result` is the value of `programs[-1]` that is returned or sampled
    from.

    same_bits: uses the kernels whose results have the same bits on every CPU.
    """

    def __init__(
        self,
        pool: Pool,
        programs: Sequence[Program],
        result: int,
        width: int,
        same_bits: bool = False,
    ) -> None: ...
    def submit(
        self,
        tokens: I32,
        positions: I32,
        sequence_starts: I32,
        block_tables: I32,
        logit_rows: I32,
        sampling: object | None,
        types: I32 | None = None,
        patches: F32 | None = None,
        adapters: I32 | None = None,
    ) -> int:
        """Copies its arguments, queues the batch, returns its ticket; types [M] and patches [M, width], or
        none (patches: [0, 0]), as Programs read; adapters [M]: the slot of each row's adapter, -1 for none.

        `sampling` is a corepipe.neuron.step.SamplingBatch, read by attribute.
        Raises ValueError for shapes that disagree or exceed the sizes of the Programs.
        """

    def set_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """Puts an adapter into a slot, or empties it: for batches that are submitted later.

        Raises ValueError for a slot that is no number from 0 to 4095, and an adapter of other Programs.
        """

    def go_on(self, ticket: int, ends: I32) -> int:
        """Queues the batch that follows a submitted one, and returns its ticket: one more row per sequence,
        for the token that is sampled after its last row, with the same sampling parameters at the next
        position.

        It starts when the first batch has ended.  It is dropped if one of `ends` was sampled there, a row had
        logits that are not numbers, or a file of `heed` can be read.
        Raises ValueError where a sequence samples no such token, or where sampling depends on more than
        logits.
        """

    def adopt(self, ticket: int) -> bool:
        """Returns True if a batch queued by `go_on` runs or has run; otherwise its ticket is void."""

    def drop(self, ticket: int) -> None:
        """Cancels the batch: it does not start, if it has not; its ticket is void."""

    def heed(self, files: Sequence[int]) -> None:
        """Sets file descriptors to watch: while one can be read, no batch of `go_on` starts.  For all
        executors that share the pool."""
    def give_masks(self, ticket: int, masks: I32) -> None:
        """Copies the masks [rows with one, (vocab + 31) // 32] of a batch, which may run meanwhile.

        Raises ValueError for another shape, and for a batch that needs no masks or has them.
        """
    def wait(self, ticket: int) -> dict[str, Any]:
        """Waits with the GIL released; returns a dict with the fields of StepOutput, and `spans`: (program,
        start_ns, end_ns) of the host, one for each run of a core; `scratch_bytes`: the present working
        memory of Linears and mixtures of the pool.

        Raises RuntimeError where the batch has failed, or needs masks and has none.
        """
    def watch(self, hook: Callable[[int], None] | None) -> None:
        """Tests: sets a hook, called with the Program's index each time another core's part starts to run."""

def divide(panels: int, blocks: int, threads: int) -> tuple[int, int]:
    """Tests: returns the number of parts, by rows, of a Linear's panels, and the blocks for which threads
    idle."""

def int8_accumulators(x: npt.NDArray[np.int8], matrix: Matrix) -> I32:
    """Tests: x [M, k] -> int32 sums [k / 64 groups, M, n] before any scale."""

def sample(logits: F32, sampling: object, masks: I32 | None = None) -> dict[str, Any]:
    """Tests: the sampler alone, on logits [R, V]."""

class SimulatedStepTimes:
    """Times of steps, for replicas whose cores are equally fast; each time is computed once and cached."""

    def __init__(self, asked: object) -> None:
        """asked: a corepipe.simulation.step_times.StepTimes, whose methods compute the times."""

class SimulatedReplica:
    """A replica, of simulation/native_fleet.py; seconds as in `Timeline`."""

    unfinished: int
    running: int
    waiting: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    blocks_held: int
    blocks_cached: int
    busy_seconds: list[float]
    overlap_seconds: float
    work_seconds: float
    hand_over_seconds: float
    draft_seconds: float
    drafted: tuple[int, int, int, list[int]]
    """The fields of a corepipe.scheduler.request.Drafted."""
    steps: int
    nbytes: int
    def check(self) -> None:
        """Raises RuntimeError unless blocks and reference counts match the requests that hold them."""
    def step_columns(self, columns: Sequence[int]) -> F64:
        """Returns [columns, steps]: the columns with these places in `record.STEP_COLUMNS`."""
    def step_reader(self, columns: Sequence[int]) -> SimulatedSteps:
        """Returns a reader of the same, part by part."""

class SimulatedSteps:
    """Steps of a replica, from the first on."""

    def read(self, rows: int) -> F64:
        """Returns [columns, rows] of the next steps; fewer at the end."""

class SimulatedFleet:
    """Replicas under one router and one clock.  Times are in seconds of that clock."""

    def __init__(
        self,
        limits: object,
        segregated: bool,
        draft_rates: Sequence[float],
        replicas: Sequence[tuple[SimulatedStepTimes, object, float, float | None]],
        margin: int,
        told: bool,
    ) -> None:
        """limits: a corepipe.scheduler.config.SchedulerConfig, read by attribute.  draft_rates: of a
        SyntheticDrafter; none: there are no drafts.  replicas: the times of each, its Rounds, and a profile's
        host_seconds and change_seconds.  margin: `router.load_margin`.  told: `news` will be called."""
    def next_event(self) -> float:
        """Returns the time of the next event; infinity if there is none before the next request."""
    def advance(self, until: float) -> bool:
        """Processes all events up to and including this time, or up to the first news: True then."""
    def add(
        self,
        number: int,
        arrival: float,
        prompt_tokens: int,
        most_tokens: int,
        answer: int,
        segments: tuple[tuple[int, int], ...],
        draft_seed: int,
    ) -> str | None:
        """Adds a request whose prompt has segments of (id, tokens); draft_seed: of its SyntheticDrafter.
        Returns None, or why it is refused: "overloaded" or "invalid"."""
    def news(self) -> tuple[list[tuple[int, float]], list[tuple[int, int, float]]]:
        """Returns since the last call: (number, time) of first tokens, (number, tokens it has, time) of
        ends."""
    def replica(self, number: int) -> SimulatedReplica: ...
    nbytes: int
    def requests(self) -> F64:
        """Returns [columns, requests] of the ended requests, in order: `record.REQUEST_COLUMNS`, and the
        replica."""
    def gaps(self) -> tuple[F64, F64]:
        """Returns the seconds between the tokens of a request, and the number of tokens after each such
        gap."""
