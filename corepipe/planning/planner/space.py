"""The search space of a plan: instances x logical cores x placements x formats x profiles x batch limits.

By default only configurations that a Neuron stack runs are proposed: tensor degrees that it accepts on the
instance, pipelines on inf1 alone (NeuronCore Pipeline), formats that it serves with and the chip has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import Instance, Support
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS, Format

DEFAULT_FORMATS = ("bf16", "int8-weights")
"""Formats that Neuron stacks serve with: they have no int8 arithmetic; fp32 gains nothing."""

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCHED_TOKENS = (512, 2048, 8192)

MOST_TOKENS = 16384
"""Tokens of a batch at most, as `corepipe serve` takes them."""

BLOCK_SIZE = 32
"""Positions in a KV block, the default of `corepipe serve`."""


MOST_INSTANCES = 256
"""Instances of a deployment at most: one that needs more would serve next to nothing on each."""


def degrees(placement: Placement) -> str:
    """Returns the degrees above 1, in words."""
    return " ".join(f"{name} {degree}" for name, degree in placement.degrees.items() if degree > 1)


@dataclass(frozen=True, slots=True)
class DeploymentShape:
    """A model on one instance, named as in the catalogue: everything that needs Programs of its own.

    lnc: physical cores in a logical one, if not the instance's default (trn2: 2).
    """

    instance: str
    format: Format
    placement: Placement
    profile: RuntimeProfile
    lnc: int | None = None

    @property
    def device(self) -> Instance:
        """The instance itself."""
        found = find_instance(self.instance)
        return found if self.lnc is None else found.with_lnc(self.lnc)

    def __str__(self) -> str:
        split = f"lnc {self.lnc}" if self.lnc else ""
        parts = (self.instance, split, degrees(self.placement), self.format.name, self.profile.name)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The longest request, the most sequences and the most tokens of a batch, as the flags of these names;
    and the assumptions on speculative decoding, if it is used."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    speculative_config: SpeculativeConfig | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration of one instance; the search finds how many such instances are needed."""

    shape: DeploymentShape
    limits: BatchLimits

    def __str__(self) -> str:
        limits = self.limits
        guesses = limits.speculative_config
        told = f", {guesses.num_speculative_tokens} draft tokens a step (assumed)" if guesses else ""
        return (
            f"{self.shape}, batches of {limits.max_num_seqs} x {limits.max_num_batched_tokens} tokens{told}"
        )


@dataclass(frozen=True, slots=True)
class PlannedDeployment:
    """`instances` instances of one configuration, which share the requests evenly."""

    candidate: Candidate
    instances: int

    def __str__(self) -> str:
        return f"{self.instances} x {self.candidate}"


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The choices of a search; `formats` None: those of DEFAULT_FORMATS that the chip has.  `whole`: also
    batches that take the longest sequence whole, where that is more than a prompt.  `speculative_config`:
    each batch limit also with speculative decoding, with these assumptions."""

    instances: tuple[Instance, ...]
    formats: tuple[Format, ...] | None
    profiles: tuple[RuntimeProfile, ...]
    sequences: tuple[int, ...] = SEQUENCES
    batched_tokens: tuple[int, ...] = BATCHED_TOKENS
    whole: bool = False
    speculative_config: SpeculativeConfig | None = None

    def shapes(self, heads: int, layers: int, experts: int = 0) -> Iterator[DeploymentShape]:
        """Yields every shape, in the catalogue's order, for a model of so many heads, layers and experts
        of a layer (0: none): experts are also divided among tensor ranks, by software that does that."""
        for instance in self.instances:
            for lnc, device in _logical(instance):
                for fmt in self._formats(device):
                    for placement in placements(device, heads, layers):
                        for profile in self.profiles:
                            yield DeploymentShape(device.name, fmt, placement, profile, lnc)
                            divides = profile.expert_parallel and placement.pipeline == 1
                            if divides and 1 < placement.tensor <= experts:
                                divided = replace(placement, expert=placement.tensor)
                                yield DeploymentShape(device.name, fmt, divided, profile, lnc)

    def limits(self, longest: int, prompt: int) -> Iterator[BatchLimits]:
        """Yields every batch limit, for requests of up to `longest` tokens of which `prompt` are the
        prompt's: room for more tokens than that changes nothing."""
        tokens = [n for n in self.batched_tokens if n < prompt]
        most = min(longest, MOST_TOKENS)
        tokens += [min((n for n in self.batched_tokens if n >= prompt), default=most)]
        tokens += [most] if self.whole and most not in tokens else []
        for sequences in self.sequences:
            for batched in tokens:
                yield BatchLimits(longest, sequences, max(batched, sequences))
                if (guesses := self.speculative_config) is not None:
                    rows = sequences * (1 + guesses.num_speculative_tokens)
                    yield BatchLimits(longest, sequences, max(batched, rows), guesses)

    def _formats(self, instance: Instance) -> Sequence[Format]:
        if self.formats is not None:
            return self.formats
        known = (FORMATS[name] for name in DEFAULT_FORMATS)
        return [fmt for fmt in known if instance.support(fmt) is Support.NATIVE]


def _logical(instance: Instance) -> Iterator[tuple[int | None, Instance]]:
    """Yields the instance with its default logical cores, and with single physical ones if different."""
    yield None, instance
    if instance.lnc > 1:
        yield 1, instance.with_lnc(1)


def placements(instance: Instance, heads: int, layers: int) -> Iterator[Placement]:
    """Yields the placements that the instance's stack accepts, each with as many replicas as there are
    cores for; where cores share a memory bank also with a half, a quarter ... of them."""
    for tensor in instance.tensor_degrees:
        if tensor <= heads:
            for pipeline in _pipelines(instance, layers):
                most = instance.cores // (pipeline * tensor)
                for data in _replicas(instance, most):
                    yield Placement(pipeline, tensor, data)


def _pipelines(instance: Instance, layers: int) -> list[int]:
    if instance.chip.core.resident_weight_bytes is None:
        return [1]
    return [2**i for i in range(layers.bit_length()) if 2**i <= min(layers, instance.cores)]


def _replicas(instance: Instance, most: int) -> list[int]:
    if most < 1:
        return []
    if instance.cores_per_bank == 1:
        return [most]
    return [most // 2**i for i in range(most.bit_length())]
