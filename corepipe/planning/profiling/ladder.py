"""The ladder: the gain of each optimisation of a deployment, one after the other.

It climbs from one request at a time on one core to the whole instance.  Each rung keeps the changes of those
below it.  A rung that does not apply to a model has a reason instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from corepipe.engine.assembly.draft_plan import draft_graph
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.constants import HOST_LINK_BYTES_PER_SECOND
from corepipe.neuron.chips.hardware import Instance, Support, dollars_per_million_tokens
from corepipe.neuron.chips.runtime_profile import Buckets, RuntimeProfile, SamplingLocation
from corepipe.neuron.compile.compiler import compile_for_timing
from corepipe.neuron.compile.memory import DeploymentLimits, Draft, blocks_that_fit, measure
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import FORMATS, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.timing.draft_times import DraftTimes
from corepipe.neuron.timing.modes import refuses_experts
from corepipe.neuron.timing.tables import Breakdown
from corepipe.neuron.values import InputKind
from corepipe.planning.profiling.profile import BLOCK, unpadded

MOST_BATCH = 64

WORTH = 1.01
"""Factor of throughput that doubling a batch must give to be worth it."""


@dataclass(frozen=True, slots=True)
class LadderWork:
    """A model on an instance, and a request: tokens in, tokens out (0: the model runs once over its input).

    longest: the length that sequences are padded to as long as there are no buckets.  rates: for each
    position of a draft, the assumed share of drafts that are accepted up to there; none: nothing is assumed.
    draft: the draft model; None: drafts take no time.
    """

    architecture: Architecture
    format: Format
    instance: Instance
    profile: RuntimeProfile
    input_len: int
    output_len: int
    longest: int
    rates: tuple[float, ...] = ()
    draft: Architecture | None = None


@dataclass(frozen=True, slots=True)
class RungSetting:
    """The configuration of a rung.  together: one transfer to the host per batch; padded: every sequence
    to the longest; guesses: steps verify the drafts that are assumed; expert: as Placement's."""

    format: Format
    batch: int = 1
    tensor: int = 1
    data: int = 1
    together: bool = False
    padded: bool = True
    guesses: bool = False
    expert: int = 1

    @property
    def placement(self) -> Placement:
        """The placement of one copy."""
        return Placement(1, self.tensor, expert=self.expert)


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung: inferences or tokens per second of the instance, seconds of a request, dollars for a million
    of them (None: no price), and the factor of throughput over the rung below."""

    name: str
    setting: RungSetting
    per_second: float
    seconds: float
    dollars: float | None
    gain: float
    why: str


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs, the unit that is counted, and the rungs that do not apply to this model, with the reason."""

    work: LadderWork
    unit: str
    rungs: tuple[Rung, ...]
    without: tuple[tuple[str, str], ...]


def ladder(work: LadderWork) -> Ladder:
    """Climbs the ladder.  Raises UserError for a model of which one request does not fit one core."""
    bench = _LadderTimes(work)
    base = RungSetting(
        FORMATS["fp32"] if work.instance.support(FORMATS["fp32"]) is Support.NATIVE else work.format
    )
    if not bench.fits(base):
        base = replace(base, format=work.format)
    if not bench.fits(base):
        raise UserError(
            f"{work.architecture.name} does not fit one core of {work.instance.name}: its ladder begins with "
            "tensor parallelism; give a smaller model or --dtype",
            "instance",
        )
    rungs = [
        bench.rung(
            "one request at a time", base, None, "one core computes one request, and waits for the next"
        )
    ]
    without: list[tuple[str, str]] = []
    for name, setting, why in _steps(work, bench, rungs):
        if setting is None or setting == rungs[-1].setting:
            without.append((name, why))
        else:
            rungs.append(bench.rung(name, setting, rungs[-1], why))
    return Ladder(work, bench.unit, tuple(rungs), tuple(without))


def takes_images(graph: Graph) -> bool:
    """Tells whether a graph reads images, so that its inputs are all of one size."""
    return any(given.kind in {InputKind.PATCHES, InputKind.PIXELS} for given in graph.inputs)


Step = tuple[str, RungSetting | None, str]
"""A rung's name, its setting (None: it does not apply to this model), and the reason."""


def _steps(work: LadderWork, bench: _LadderTimes, rungs: list[Rung]) -> Iterator[Step]:
    """Yields each further step from the last rung."""
    for step in (_batching, _format, _cores, _transfers, _buckets, _guesses, _placement):
        yield step(work, bench, rungs[-1].setting)


def _batching(_work: LadderWork, bench: _LadderTimes, at: RungSetting) -> Step:
    bound, share = bench.bound(at)
    batch = bench.best_batch(at)
    more = (
        f"a batch of {batch} reads the weights once" if batch > 1 else "a larger batch takes as much longer"
    )
    return "batching", replace(at, batch=batch), f"{share:.0%} of a step goes to {bound}; {more}"


def _format(work: LadderWork, _bench: _LadderTimes, at: RungSetting) -> Step:
    new, old = work.format, at.format
    if new == old:
        return "format", None, f"it is in {new.name} from the start"
    times = work.instance.peak(new.multiplied) / work.instance.peak(old.multiplied)
    why = f"{new.name} is multiplied {times:.3g} times as fast as {old.name}, and has fewer bytes"
    return "format", replace(at, format=new), why


def _cores(work: LadderWork, _bench: _LadderTimes, at: RungSetting) -> Step:
    cores = work.instance.cores_per_chip
    name = "both cores" if cores == 2 else "all cores of a chip"
    return name, replace(at, data=cores), f"{cores} copies of the model, one on each core of a chip"


def _transfers(work: LadderWork, bench: _LadderTimes, at: RungSetting) -> Step:
    name = "host transfers batched"
    if not bench.encodes:
        why = "tokens are drawn on the device, and come in one transfer; before, the logits of each sequence"
        return name, replace(at, together=True), why
    if at.batch == 1:
        return name, None, "a batch of one has one transfer"
    each = work.profile.host_seconds * 1e6
    why = f"one transfer a batch instead of {at.batch}, each {each:.0f} us of the host"
    return name, replace(at, together=True), why


def _buckets(work: LadderWork, bench: _LadderTimes, at: RungSetting) -> Step:
    if not bench.pads:
        return "buckets", None, "its inputs are all of one length"
    why = f"{work.input_len} tokens are padded to their bucket, not to {work.longest}"
    return "buckets", replace(at, padded=False), why


def _guesses(work: LadderWork, bench: _LadderTimes, at: RungSetting) -> Step:
    name, others = "speculation", replace(at, guesses=True)
    if bench.encodes:
        return name, None, "it generates no tokens that could be drafted"
    if not work.rates:
        return name, None, "give the acceptance rates of drafts: --speculative-config"
    standing, times = 1 + sum(work.rates), bench.step_seconds(others) / bench.step_seconds(at)
    told = f"{standing:.3g} tokens a step (assumed), which takes {times:.3g} times as long"
    return name, others if bench.per_second(others) > bench.per_second(at) else None, told


def _placement(work: LadderWork, bench: _LadderTimes, at: RungSetting) -> Step:
    best = bench.best_placement(at)
    if best == at:
        return "placement", None, "no other cut or number of copies gives more"
    divided = f", experts divided among {best.expert} cores" if best.expert > 1 else ""
    cut = f"tensor {best.tensor} x data {best.data}{divided}"
    why = f"{cut}, batches of {best.batch}: {work.instance.cores} cores"
    return "placement", best, why


class _LadderTimes:
    """Times settings."""

    def __init__(self, work: LadderWork) -> None:
        self._work = work
        self._graph = cache(self._make_graph)
        self._cost = cache(self._make_cost)
        self._draft = cache(self._make_draft)
        self._draft_times = cache(self._make_draft_times)
        graph = self._graph(work.format)
        self.encodes = not graph.causal
        self.pads = not takes_images(graph) and work.longest > work.input_len
        self.unit = "inferences" if self.encodes else "tokens"

    def rung(self, name: str, setting: RungSetting, below: Rung | None, why: str) -> Rung:
        """Returns the setting as a rung above another one."""
        per_second, price = self.per_second(setting), self._work.instance.price_per_hour
        dollars = None if price is None else dollars_per_million_tokens(price, per_second)
        gain = per_second / below.per_second if below else 1.0
        return Rung(name, setting, per_second, self.seconds(setting), dollars, gain, why)

    def per_second(self, setting: RungSetting) -> float:
        """Returns the inferences, or generated tokens, per second of all copies."""
        done = setting.batch * (1 if self.encodes else self._work.output_len)
        return setting.data * done / self.seconds(setting)

    def seconds(self, setting: RungSetting) -> float:
        """Returns the seconds of a whole batch, from its first transfer to its last."""
        work, cost = self._work, self._cost(setting)
        transfers = 1 if setting.together else setting.batch
        host = transfers * work.profile.host_seconds
        if self.encodes:
            step = StepShape.of([(0, self._length(setting, work.input_len))] * setting.batch, setting.batch)
            return host + cost.input_seconds(step) + cost.output_seconds(step) + cost.latency(step)
        prompt = StepShape.of([(0, self._length(setting, work.input_len))], 1)
        first = cost.latency(prompt) + self._drafting(setting, prompt)
        prompts = setting.batch * (host / transfers + first)
        standing = 1 + sum(work.rates) if setting.guesses else 1
        return prompts + max(1, work.output_len - 1) / standing * self.step_seconds(setting)

    def step_seconds(self, setting: RungSetting) -> float:
        """Returns the seconds of a step that gives each sequence a token and its accepted drafts."""
        work, each = self._work, 1 + len(self._work.rates) if setting.guesses else 1
        context = self._length(setting, work.input_len + (work.output_len + 1) // 2)
        step = StepShape.of([(context - 1, each)] * setting.batch, setting.batch * each, each)
        host = (1 if setting.together else setting.batch) * work.profile.host_seconds
        drawn = 0.0 if setting.together else setting.batch * each * self._drawn
        return host + drawn + self._drafting(setting, step) + self._cost(setting).latency(step)

    def _drafting(self, setting: RungSetting, step: StepShape) -> float:
        """Returns the seconds of the draft model in a step."""
        if not setting.guesses or self._work.draft is None:
            return 0.0
        return self._draft_times(setting).seconds(step)

    @property
    def _drawn(self) -> float:
        """Seconds to transfer one sequence's logits to the host and to sample from them there."""
        width = self._graph(self._work.format).vocab_size
        return width * (4 / HOST_LINK_BYTES_PER_SECOND + self._work.profile.host_seconds_per_logit)

    def _length(self, setting: RungSetting, tokens: int) -> int:
        if setting.padded:
            return self._work.longest if self.pads else tokens
        return Buckets.POWERS.pad(tokens, self._work.longest)

    def bound(self, setting: RungSetting) -> tuple[str, float]:
        """Returns the bottleneck of a step, and its share."""
        length = self._length(setting, self._work.input_len)
        step = StepShape.of([(0, length)], 1) if self.encodes else StepShape.decode(1, length)
        parts: Breakdown = self._cost(setting).explain(0, step)
        return parts.bottleneck.value, parts.seconds[parts.bottleneck] / parts.total

    def best_batch(self, setting: RungSetting) -> int:
        """Returns the largest batch: doubled as long as it is worth it and fits."""
        best = setting
        while best.batch < MOST_BATCH:
            more = replace(best, batch=2 * best.batch)
            if not self.fits(more) or self.per_second(more) < WORTH * self.per_second(best):
                break
            best = more
        return best.batch

    def best_placement(self, setting: RungSetting) -> RungSetting:
        """Returns the best of the tensor degrees that the instance takes, with as many copies as there are
        cores for; experts divided among a copy's cores where the software does that for such a batch."""
        best = setting
        for cut in self._cuts(setting):
            if self.fits(cut):
                other = replace(cut, batch=max(cut.batch, self.best_batch(cut)))
                if self._is_served(other):
                    best = max(best, other, key=self.per_second)
        return best

    def _cuts(self, setting: RungSetting) -> Iterator[RungSetting]:
        graph, cores = self._graph(self._work.format), self._work.instance.cores
        for tensor in self._work.instance.tensor_degrees:
            if tensor <= min(graph.attention_heads, cores):
                cut = replace(setting, tensor=tensor, data=cores // tensor)
                yield cut
                if self._work.profile.expert_parallel and 1 < tensor <= graph.experts:
                    yield replace(cut, expert=tensor)

    def _is_served(self, setting: RungSetting) -> bool:
        graph, profile = self._graph(setting.format), self._work.profile
        return refuses_experts(graph, setting.placement, profile, setting.batch) is None

    def fits(self, setting: RungSetting) -> bool:
        """Tells whether weights, buffers and a batch's keys and values fit."""
        work = self._work
        blocks = setting.batch * -(-work.longest // BLOCK)
        rows = setting.batch * work.longest if self.encodes else work.longest
        try:
            beside = self._draft(setting.format) if setting.guesses else None
            limits = DeploymentLimits(work.longest, setting.batch, rows, BLOCK, blocks, beside=beside)
            cores = measure(self._compiled(setting), limits)
        except UserError:  # the model cannot be divided so
            return False
        return blocks_that_fit(cores, setting.data, work.instance) >= (0 if self.encodes else blocks)

    def _make_graph(self, fmt: Format) -> Graph:
        return self._work.architecture.graph(fmt, self._work.longest)

    def _compiled(self, setting: RungSetting) -> tuple[Program, ...]:
        return compile_for_timing(self._graph(setting.format), setting.placement)

    def _make_draft(self, fmt: Format) -> Draft | None:
        draft = self._work.draft
        return None if draft is None else Draft(draft_graph(draft, self._graph(fmt)))

    def _make_draft_times(self, setting: RungSetting) -> DraftTimes:
        draft = self._draft(setting.format)
        assert draft is not None
        return DraftTimes(self._timed(draft.programs(setting.tensor), setting))

    def _make_cost(self, setting: RungSetting) -> CostModel:
        return self._timed(self._compiled(setting), setting)

    def _timed(self, programs: tuple[Program, ...], setting: RungSetting) -> CostModel:
        """Returns a cost model with graphs for the exact shapes of its steps."""
        exact = replace(unpadded(self._work.profile), sampling=SamplingLocation.DEVICE)
        return CostModel(programs, self._work.instance, exact, setting.data)
