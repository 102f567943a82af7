"""The native executor's binding.  Shapes: M rows in a batch, S sequences, R rows whose logits are wanted.

Everything here knows Ops, not architectures.  Values are fp32 buffers [max_rows, width], named by index;
a Program with `round_bf16` rounds every stored result to bf16 (round to nearest even).
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
    """Tables of docs/kernels.md that this build and this CPU can run, best first."""

def isa() -> str:
    """The path in use: COREPIPE_ISA, or the best.  Raises ValueError where it is not to be had."""

def left_out() -> list[str]:
    """Tables that this CPU could run and COREPIPE_TABLES left out of the build, best first."""

def same_bits_isa() -> str:
    """The path that `--bits same` takes.  Raises ValueError where the build lacks a table that it needs."""

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

    dtype: of the Program, "bf16" or "fp32", which they are kept as, or, with `int8`, as that and a scale for
    each key and value.  shared: of latents, one a token, the elements that are a value, too.
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
    """What recurrent Ops of a core keep of sequences, fp32: a block has `elements` numbers, of all of them.

    Block i of a sequence's table has them as they are after its positions, or as far as the sequence goes.
    table: which of a sequence's block tables.
    """

    def __init__(self, blocks: int, block_size: int, elements: int, table: int = 0) -> None: ...
    nbytes: int

class Program:
    """Ops of one core, appended in order.  Indices of values that alias are the caller's business."""

    def __init__(self, widths: Sequence[int], max_rows: int, round_bf16: bool) -> None: ...
    def memory(self) -> list[U8]:
        """The core's activations (for tests)."""
    def embed(self, out: int, table: npt.NDArray[Any]) -> None:
        """table [V, width]: f32, or bf16 as uint16."""
    def patches(self, out: int) -> None:
        """What a batch brings for each row."""
    def first_rows(self, out: int, rows: F32) -> None:
        """rows [count, width] take the place of `out` at the first `count` positions of a sequence."""
    def add_embedding(
        self, x: int, out: int, table: npt.NDArray[Any], offset: int = 0, by: str = "position"
    ) -> None:
        """out = x + table[position + offset], or by "type"; the table as `embed` takes it."""
    def rms_norm(self, x: int, out: int, gain: F32, eps: float, groups: int = 1) -> None:
        """Over each of `groups` parts of len(gain) elements."""
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
        """segments: (matrix, bias, out) that share x.  In this order, each step rounded:

        norm = (gain, eps): x is RMS-normalised; layer_norm = (gain, bias, eps).
        function: of x @ w.T + bias; without factor and residual.
        glu: two segments of equal shape, gate and up; out of the first = function(gate) * up.
        factor: times which the result goes.
        residual: one segment only; the value that it is added to.  outer: what that sum is added to.
        """
    def rope(self, x: int, out: int, head_dim: int, cos: F32, sin: F32) -> None:
        """cos, sin [max_positions, rotary_dim / 2]."""
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
        """`layer` counts within the cache, `table` says which of a sequence's block tables the layer goes by.
        Fused, in this order: per-head norm, rotation, `head_norm` of queries and keys, queries times their
        position's of `tempers` [positions], attention.

        chunked: a row sees from the last multiple of `window` on.

        Not causal, without a cache: rows see all rows of their sequence, which must be whole; with a window
        those at most half of it away.  biases [heads * (2 * reach + 1)] are added to scores by how far the
        key is ahead, from -reach on; reach is 64 more than positions differ by.

        softcap: a scaled score s becomes softcap * tanh(s / softcap).  slopes [heads]: then it loses its
        head's slope for each position that the key lies back.  sinks [heads]: the softmax counts one score
        more a head, of nothing.
        """
    def activation(self, function: str, x: int, out: int) -> None: ...
    def glu(self, gate: int, up: int, out: int, function: str = "silu") -> None: ...
    def scale(self, x: int, factor: float, out: int, by: int | None = None) -> None:
        """by: a value of width 1, whose rows x's are multiplied by, too."""
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
        biases: Sequence[F32] = (),
        nearness: float = 0.0,
        correction: F32 | None = None,
        groups: tuple[int, int] = (1, 1),
        factor: float = 1.0,
        first: int | None = None,
    ) -> None:
        """out = sum of weight * (down(function(gate(x)) * up(x))) over the `top_k` experts whose scores are
        highest.  The matrices are one for each expert, all of the same shapes.

        scoring: weights are the softmax of all scores, "of_all", or of those of these experts, "of_chosen";
        or of each expert, "of_near", of the scores that are less than its own by no more than `nearness`
        times the larger of both sizes, without those of the experts before it.
        or the sigmoid of each score, "sigmoid", or that by the sum of those of these experts,
        "sigmoid_shares"; `correction` [experts] is added to it for the choice alone.  "input_sigmoid": the
        sigmoid of each score, which multiplies what the expert takes, not what it makes.
        biases: none, or gate's and up's [experts, n] and maybe down's.
        groups: experts are in so many equal groups, of which a row takes those of so many: of those that have
        the largest score, or, of sigmoids, the largest two together.  factor: of all weights.
        first: of a core that has only some of the experts, from that number on; `out` [rows, top_k * n] then
        has what these make, a row's for the i-th expert that it takes at i * n, neither weighed nor added.
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
        """out = what `experts` makes of all experts, to the last bit, of the results x that the programs
        `group` have of their own: each has those from one of `bounds` to the next.

        scoring and what follows it: as in `experts`.
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
        """out = of each head value_up @ what its query finds in the latents, with scores q.k * scale.

        values: q [heads * (rotary + part)], latent and key_rope [rotary], which make a key.  A head's query
        is its rotated elements and key_up @ the others.  key_up: of each head [latent, part]; value_up
        [value, latent].
        """
    def clamp(self, x: int, limit: float, out: int) -> None:
        """x held within -limit .. limit."""
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

        weights [taps, width]; bias [width].  state: a cache, and where the (taps - 1) * width elements of it
        begin that are kept of a sequence.
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
        """step = clamp(softplus(dt + dt_bias)); h = exp(step * rate) * h + (step * x) outer b;
        out = h . c + skip * x, of each head by itself, token after token.

        values: x, heads x head_dim wide, head_dim a multiple of 16; b and c, groups x states, each of
        neighbouring heads; dt, heads.  of_heads: rates, dt_bias and skip.  limits: of a step.  state: as for
        `convolve`, of heads * head_dim * states elements.
        """
    def add(self, a: int, b: int, out: int) -> None: ...
    def select_rows(self, x: int, out: int) -> None: ...
    def pool(self, pooling: str, x: int, out: int) -> None:
        """One row of each sequence's, which a batch then has one logit row of: "first", "second", "last",
        "mean", "max", "mean_sqrt_len", "weighted_mean"."""
    def all_reduce(self, x: int, out: int, group: Sequence[int]) -> None:
        """group: indices of the Programs that take part, in rank order."""
    def all_gather(self, x: int, out: int, group: Sequence[int], widths: Sequence[int]) -> None: ...
    def send(self, x: int, peer: int, rows: str = "tokens") -> None: ...
    def receive(self, out: int, peer: int, rows: str = "tokens") -> None: ...

class Pool:
    """The threads of the process, and the queue of batches.  Batches run one after the other."""

    def __init__(self, threads: int, beats: npt.NDArray[np.int64] | memoryview | None = None) -> None:
        """beats [1]: grows while a batch gets on, at each part of an Op; another process may read it."""
    threads: int
    def close(self) -> None: ...

class Executor:
    """Runs the Programs of a replica; `result` is the value of `programs[-1]` that is given or drawn from.

    same_bits: by the kernels whose results have the same bits on every CPU.
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
    ) -> int:
        """Copies its arguments, queues the batch, returns its ticket; types [M] and patches [M, width], or
        none (patches: [0, 0]), as Programs read.

        `sampling` is a corepipe.neuron.compile.program.SamplingBatch, read by attribute.
        Raises ValueError for shapes that disagree or exceed what the Programs were built for.
        """

    def go_on(self, ticket: int, ends: I32) -> int:
        """Queues the batch that follows one that was submitted, and returns its ticket: one more row of each
        sequence, of the token that is drawn behind its last row, drawn from alike at the next position.

        It starts when that one has ended, unless one of `ends` was drawn there, a row had no numbers, or
        something that is heeded can be read: then it is dropped.
        Raises ValueError where a sequence draws no such token, or where draws hang on more than logits.
        """

    def adopt(self, ticket: int) -> bool:
        """Whether a batch that goes on from another runs, or did; if not, its ticket is void."""

    def drop(self, ticket: int) -> None:
        """Nobody wants the batch: it does not start, if it has not; its ticket is void."""

    def heed(self, files: Sequence[int]) -> None:
        """File descriptors: where one can be read, no batch starts that goes on from another.  Of all
        executors that share the pool."""
    def give_masks(self, ticket: int, masks: I32) -> None:
        """Copies the masks [rows with one, (vocab + 31) // 32] of a batch, which may be computed meanwhile.

        Raises ValueError for another shape, and where the batch wants none or has its masks.
        """
    def wait(self, ticket: int) -> dict[str, Any]:
        """Waits with the GIL released; a dict with the fields of StepOutput, and
        `spans`: (program, start_ns, end_ns) of the host, one for each run of a core;
        `scratch_bytes` that Linears and mixtures of the pool work in by now.

        Raises RuntimeError where the batch has failed, or wants masks and has none.
        """
    def watch(self, hook: Callable[[int], None] | None) -> None:
        """Tests: called with the Program's index each time another core's part starts to run."""

def divide(panels: int, blocks: int, threads: int) -> tuple[int, int]:
    """Tests: into how many parts by rows a Linear's panels are cut, and how many blocks threads idle for."""

def int8_accumulators(x: npt.NDArray[np.int8], matrix: Matrix) -> I32:
    """Tests: x [M, k] -> int32 sums [k / 64 groups, M, n] before any scale."""

def sample(logits: F32, sampling: object, masks: I32 | None = None) -> dict[str, Any]:
    """Tests: the sampler alone, on logits [R, V]."""

class SimulatedStepTimes:
    """How long steps take, for replicas whose cores are as fast; what was asked once is kept."""

    def __init__(self, asked: object) -> None:
        """asked: a corepipe.simulation.step_times.StepTimes, whose methods are called."""

class SimulatedReplica:
    """A replica of one stage, of simulation/native_fleet.py; seconds as `Timeline` has them."""

    unfinished: int
    running: int
    waiting: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    blocks_held: int
    blocks_cached: int
    in_flight: bool
    busy_seconds: float
    overlap_seconds: float
    work_seconds: float
    steps: int
    nbytes: int
    def check(self) -> None:
        """Raises RuntimeError unless blocks and reference counts match the requests that hold them."""
    def step_columns(self, columns: Sequence[int]) -> F64:
        """[columns, steps]: those with these places in `record.STEP_COLUMNS`."""
    def step_reader(self, columns: Sequence[int]) -> SimulatedSteps:
        """The same, to be read part by part."""

class SimulatedSteps:
    """Steps of a replica, from the first on."""

    def read(self, rows: int) -> F64:
        """[columns, rows] of the next ones; fewer at the end."""

class SimulatedFleet:
    """Replicas under one router and one clock.  Times are in seconds of that clock."""

    def __init__(
        self,
        limits: object,
        segregated: bool,
        replicas: Sequence[tuple[SimulatedStepTimes, float, float | None]],
        margin: int,
        told: bool,
    ) -> None:
        """limits: a corepipe.scheduler.config.SchedulerConfig, read by attribute.  replicas: of each times,
        and a profile's host_seconds and change_seconds.  margin: `router.load_margin`.  told: there will be
        `news`."""
    def next_event(self) -> float:
        """When anything is to do; infinity: not before a request comes."""
    def advance(self, until: float) -> bool:
        """Does all that is to do up to then, that moment included, or up to the first news: True then."""
    def add(
        self,
        number: int,
        arrival: float,
        prompt_tokens: int,
        most_tokens: int,
        answer: int,
        segments: tuple[tuple[int, int], ...],
    ) -> str | None:
        """A request comes, whose prompt has segments of (id, tokens).  None: it is taken, else why not:
        "overloaded" or "invalid"."""
    def news(self) -> tuple[list[tuple[int, float]], list[tuple[int, int, float]]]:
        """Since the last call: (number, time) of first tokens, (number, tokens it has, time) of ends."""
    def replica(self, number: int) -> SimulatedReplica: ...
    nbytes: int
    def requests(self) -> F64:
        """[columns, requests] of those that ended, in order: `record.REQUEST_COLUMNS`, and the replica."""
    def gaps(self) -> tuple[F64, F64]:
        """Seconds between the tokens of a request, and how many tokens came so."""
