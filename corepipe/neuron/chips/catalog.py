"""The catalogue: instances, chips, cores, engines, memories, links and prices, each number with its source.

The types are in `hardware`.  One entry is one server: an UltraServer is several of them.  A number that is
not published is None, and a size whose number of chips is not published has no entry (`UNDESCRIBED`).
"""

from __future__ import annotations

import difflib

from corepipe.errors import UserError
from corepipe.neuron.chips.hardware import GIB, MIB, Chip, Core, Engine, Instance, TensorEngine, Topology
from corepipe.neuron.formats import DType

__all__ = ["INSTANCES", "Instance", "instance"]

TERA, GIGA = 1e12, 1e9

HARDWARE = "about-neuron/arch/neuron-hardware/"
NKI_ARCH2 = "nki/guides/architecture/trainium_inferentia2_arch.rst"
NKI_ARCH3 = "nki/guides/architecture/trainium2_arch.rst"
NKI_ARCH4 = "nki/guides/architecture/trainium3_arch.rst"
NKI_ISA = "v2.26.0:general/nki/api/nki/isa/__init__.py (nc_matmul)"
DMA_GUIDE = "nki/deep-dives/nki-dma-bandwidth-guide.rst"
PIPELINE = "about-neuron/arch/neuron-features/neuroncore-pipeline.rst"
LNC = "about-neuron/arch/neuron-features/logical-neuroncore-config.rst"
HOPS = "neuron-runtime/explore/intranode-collective-comm.rst (1-2 us a hop; the middle)"
NXDI = "libraries/nxd-inference/developer_guides/"
NEURON_LS = "tools/neuron-sys-tools/neuron-ls.rst"
CONTRIB = "neuronx-distributed-inference contrib READMEs"
DRIVER = "aws-neuron-driver@9cc489ec v4/neuron_dhal_v4.c"
SKYPILOT = "skypilot-org/skypilot-catalog@00148f2a catalogs/v8/aws/vms.csv"


def _from(source: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, source)


_V1, _V2, _V3, _V4 = (f"{HARDWARE}neuron-core-v{n}.rst" for n in (1, 2, 3, 4))
_V1_CLOCK = f"{_V1} (not published: 0.9 GHz follows from its engines' speed beside NeuronCore-v2's)"

CORE_V1 = Core(
    version="v1",
    tensor=TensorEngine(
        peak={DType.BF16: 16 * TERA, DType.FP16: 16 * TERA, DType.INT8: 32 * TERA},
        min_rows=64,
        array=None,
        clock_hz=None,
        sources=_from(_V1, "peak") | _from(f"{NKI_ISA}; not published for v1, assumed as v2", "min_rows"),
    ),
    vector=Engine(name="vector", lanes=256, clock_hz=0.9e9, sources={"lanes": _V1, "clock_hz": _V1_CLOCK}),
    scalar=Engine(name="scalar", lanes=512, clock_hz=0.9e9, sources={"lanes": _V1, "clock_hz": _V1_CLOCK}),
    sbuf_bytes=None,
    psum_bytes=None,
    resident_weight_bytes=10_000_000,
    dma_bytes_per_second=None,
    sources=_from(f"{PIPELINE} (4 cores for 2e7 weights of bf16)", "resident_weight_bytes"),
)

CORE_V2 = Core(
    version="v2",
    tensor=TensorEngine(
        peak={
            DType.FP32: 23 * TERA,
            DType.BF16: 92 * TERA,
            DType.FP16: 92 * TERA,
            DType.FP8_E4M3: 92 * TERA,
            DType.FP8_E5M2: 92 * TERA,
            DType.INT8: 190 * TERA,
        },
        min_rows=64,
        array=(128, 128),
        clock_hz=2.8e9,
        sources=_from(f"{_V2}, {NKI_ARCH2}", "peak", "array", "clock_hz") | _from(NKI_ISA, "min_rows"),
    ),
    vector=Engine(name="vector", lanes=128, clock_hz=1.12e9, sources=_from(NKI_ARCH2, "lanes", "clock_hz")),
    scalar=Engine(name="scalar", lanes=128, clock_hz=1.4e9, sources=_from(NKI_ARCH2, "lanes", "clock_hz")),
    sbuf_bytes=24 * MIB,
    psum_bytes=2 * MIB,
    resident_weight_bytes=None,
    dma_bytes_per_second=16 * 17e9,
    sources=_from(NKI_ARCH2, "sbuf_bytes", "psum_bytes") | _from(DMA_GUIDE, "dma_bytes_per_second"),
)

CORE_V3 = Core(
    version="v3",
    tensor=TensorEngine(
        peak={
            DType.FP32: 20 * TERA,
            DType.BF16: 79 * TERA,
            DType.FP16: 79 * TERA,
            DType.FP8_E4M3: 158 * TERA,
            DType.FP8_E5M2: 158 * TERA,
        },
        min_rows=64,
        array=(128, 128),
        clock_hz=2.4e9,
        contraction={DType.FP8_E4M3: 256, DType.FP8_E5M2: 256},
        sources=_from(f"{_V3}, {NKI_ARCH3}", "peak", "array", "clock_hz", "contraction")
        | _from(NKI_ISA, "min_rows"),
    ),
    vector=Engine(name="vector", lanes=512, clock_hz=0.96e9, sources=_from(NKI_ARCH3, "lanes", "clock_hz")),
    scalar=Engine(name="scalar", lanes=128, clock_hz=1.2e9, sources=_from(NKI_ARCH3, "lanes", "clock_hz")),
    sbuf_bytes=28 * MIB,
    psum_bytes=2 * MIB,
    resident_weight_bytes=None,
    dma_bytes_per_second=16 * 23e9,
    sources=_from(NKI_ARCH3, "sbuf_bytes", "psum_bytes") | _from(DMA_GUIDE, "dma_bytes_per_second"),
)

CORE_V4 = Core(
    version="v4",
    tensor=TensorEngine(
        peak={
            DType.FP32: 20 * TERA,
            DType.BF16: 79 * TERA,
            DType.FP16: 79 * TERA,
            DType.MXFP8: 315 * TERA,
            DType.MXFP4: 315 * TERA,
        },
        min_rows=64,
        array=(128, 128),
        clock_hz=2.4e9,
        contraction={DType.MXFP8: 512, DType.MXFP4: 512},
        sources=_from(f"{_V4}, {NKI_ARCH4}", "peak", "array", "clock_hz", "contraction")
        | _from(f"{NKI_ISA}; not published for v4, assumed as v3", "min_rows"),
    ),
    vector=Engine(
        name="vector",
        lanes=512,
        clock_hz=1.2e9,
        exp_lanes=512,
        sources=_from(NKI_ARCH4, "lanes", "clock_hz")
        | {"exp_lanes": f"{NKI_ARCH4} (exponentials at 4 times ScalarE's rate of 128)"},
    ),
    scalar=Engine(
        name="scalar",
        lanes=128,
        clock_hz=1.2e9,
        sources={"lanes": f"{NKI_ARCH4} (256 for copies of bf16 alone)", "clock_hz": NKI_ARCH4},
    ),
    sbuf_bytes=32 * MIB,
    psum_bytes=2 * MIB,
    resident_weight_bytes=None,
    dma_bytes_per_second=16 * 33e9,
    sources=_from(NKI_ARCH4, "sbuf_bytes", "psum_bytes") | _from(DMA_GUIDE, "dma_bytes_per_second"),
)


def _chip_sources(page: str, banks: str) -> dict[str, str]:
    numbers = _from(HARDWARE + page, "cores", "memory_bytes", "memory_bytes_per_second")
    stack = {"hop_seconds": HOPS, "default_lnc": LNC, "weight_only_int8": f"{NXDI} (quantization_dtype)"}
    return numbers | stack | {"banks": banks}


INFERENTIA = Chip(
    name="Inferentia",
    core=CORE_V1,
    cores=4,
    memory_bytes=8 * GIB,
    memory_bytes_per_second=50.0 * GIB,
    banks=1,
    hop_seconds=1.5e-6,
    weight_only_int8=False,
    sources=_chip_sources("inferentia.rst", f"{HARDWARE}inferentia.rst"),
)
INFERENTIA2 = Chip(
    name="Inferentia2",
    core=CORE_V2,
    cores=2,
    memory_bytes=32 * GIB,
    memory_bytes_per_second=820.0 * GIB,
    banks=2,
    hop_seconds=1.5e-6,
    weight_only_int8=True,
    sources=_chip_sources("inferentia2.rst", f"{NKI_ARCH2} (2 stacks)"),
)
TRAINIUM = Chip(
    name="Trainium",
    core=CORE_V2,
    cores=2,
    memory_bytes=32 * GIB,
    memory_bytes_per_second=820.0 * GIB,
    banks=2,
    hop_seconds=1.5e-6,
    weight_only_int8=True,
    sources=_chip_sources("trainium.rst", f"{NKI_ARCH2} (2 stacks)"),
)
TRAINIUM2 = Chip(
    name="Trainium2",
    core=CORE_V3,
    cores=8,
    memory_bytes=96 * GIB,
    memory_bytes_per_second=2.9 * TERA,
    banks=4,
    hop_seconds=1.5e-6,
    weight_only_int8=True,
    default_lnc=2,
    sources=_chip_sources("trainium2.rst", f"{LNC} (two physical cores share one bank)"),
)
TRAINIUM3 = Chip(
    name="Trainium3",
    core=CORE_V4,
    cores=8,
    memory_bytes=144 * GIB,
    memory_bytes_per_second=4.7 * TERA,
    banks=4,
    hop_seconds=None,
    weight_only_int8=False,
    default_lnc=2,
    hypothetical=(
        "nothing measured on Trainium3 was published: the fitted constants are those of NeuronCore-v3, the "
        "latency of its switches counts as nothing, and the chips of each size follow from examples"
    ),
    sources=_from(f"{HARDWARE}trainium3.rst", "cores", "memory_bytes")
    | {
        "memory_bytes_per_second": f"{NKI_ARCH4}; {HARDWARE}trainium3.rst says 4.9 TB/s: the lower counts",
        "banks": f"{LNC} (two physical cores share a bank of 36 GB)",
        "default_lnc": LNC,
        "weight_only_int8": "vllm-neuron/docs (no int8 weights)",
    },
)

_DEGREES = {
    "inf1": (1,),
    "inf2": (1, 2, 4, 8, 12, 24),
    "trn1": (1, 2, 8, 16, 32),
    "trn1n": (1, 2, 8, 16, 32),
    "trn2": (1, 2, 4, 8, 16, 32, 64),
    "trn2u": (1, 2, 4, 8, 16, 32, 64),
    "trn3": (1, 2, 4, 8, 16, 32, 64),
}
_PRICES = "about-neuron/benchmarks/{0}/{1}instance_prices.csv (reserved) and its history (on demand)"


def _instance(
    name: str,
    chip: Chip,
    chips: int,
    host: tuple[int, int] | None,
    topology: Topology = Topology.NONE,
    link: float | None = None,
    prices: tuple[float | None, float | None] = (None, None),
    sources: dict[str, str] | None = None,
) -> Instance:
    """Makes an instance.  `host`: vCPUs and GiB; `prices`: on demand and reserved, dollars an hour."""
    family = "trn3" if chip is TRAINIUM3 else name.partition(".")[0]
    page = f"{HARDWARE}{family.rstrip('nu')}-arch.rst"
    price = _PRICES.format(family, "" if family == "inf1" else f"{family}_")
    numbers = _from(page, "chips", "vcpus", "host_memory_bytes", "link_bytes_per_second", "topology")
    degrees = PIPELINE if family == "inf1" else NXDI
    return Instance(
        name=name,
        chip=chip,
        chips=chips,
        vcpus=host[0] if host else None,
        host_memory_bytes=host[1] * GIB if host else None,
        topology=topology,
        link_bytes_per_second=link,
        tensor_degrees=_DEGREES[family],
        on_demand_per_hour=prices[0],
        reserved_per_hour=prices[1],
        lnc=chip.default_lnc,
        sources=numbers
        | {"tensor_degrees": degrees, "lnc": LNC}
        | _from(price, "on_demand_per_hour", "reserved_per_hour")
        | (sources or {}),
    )


_CHAIN, _RING, _TORUS = Topology.CHAIN, Topology.RING, Topology.TORUS_4X4
_TRN2_SMALL = {
    "chips": CONTRIB,
    "on_demand_per_hour": "third party, 2026-05, one region; unconfirmed",
}
_LS = {"topology": f"{NEURON_LS}, {HARDWARE}"}
_TRN1N = _LS | {"on_demand_per_hour": f"{SKYPILOT}, us-east-1"}
_TRN3 = {
    "chips": f"{DRIVER} names the size; its chips are not published: 16, as 64 logical cores an instance in "
    "the tutorials of vllm-neuron/docs (disaggregation) and 4 servers of 16 chips in trn3-arch.rst (Gen1)",
    "link_bytes_per_second": f"{HARDWARE}trn3-arch.rst (256 GB/s in a sled; 320 to other servers, 128 to "
    "other racks: together 704 of the 2.56 TB/s that trainium3.rst names)",
    "tensor_degrees": f"{NXDI}; not published for trn3, assumed as trn2",
}
_TRN3_SMALL = _TRN3 | {"chips": f"{DRIVER} (one chip)"}

INSTANCES: tuple[Instance, ...] = (
    _instance("inf1.xlarge", INFERENTIA, 1, (4, 8), prices=(0.228, 0.110)),
    _instance("inf1.2xlarge", INFERENTIA, 1, (8, 16), prices=(0.362, 0.174)),
    _instance("inf1.6xlarge", INFERENTIA, 4, (24, 48), _CHAIN, 32.0 * GIB, (1.180, 0.567)),
    _instance("inf1.24xlarge", INFERENTIA, 16, (96, 192), _CHAIN, 32.0 * GIB, (4.721, 2.269)),
    _instance("inf2.xlarge", INFERENTIA2, 1, (4, 16), prices=(0.758, 0.328)),
    _instance("inf2.8xlarge", INFERENTIA2, 1, (32, 128), prices=(1.97, 0.850)),
    _instance("inf2.24xlarge", INFERENTIA2, 6, (96, 384), _RING, 192.0 * GIB, (6.49, 2.804), _LS),
    _instance("inf2.48xlarge", INFERENTIA2, 12, (192, 768), _RING, 192.0 * GIB, (12.981, 5.608), _LS),
    _instance("trn1.2xlarge", TRAINIUM, 1, (8, 32), prices=(1.34, 0.512)),
    _instance("trn1.32xlarge", TRAINIUM, 16, (128, 512), _TORUS, 384 * GIGA, (21.50, 8.197), _LS),
    _instance("trn1n.32xlarge", TRAINIUM, 16, (128, 512), _TORUS, 768 * GIGA, (24.78, None), _TRN1N),
    _instance("trn2.3xlarge", TRAINIUM2, 1, None, prices=(2.235, None), sources=_TRN2_SMALL),
    _instance("trn2.48xlarge", TRAINIUM2, 16, (192, 2048), _TORUS, 1024 * GIGA, sources=_LS),
    _instance("trn2u.48xlarge", TRAINIUM2, 16, (192, 2048), _TORUS, 1024 * GIGA, sources=_LS),
    *(
        _instance(f"{family}.3xlarge", TRAINIUM3, 1, None, sources=_TRN3_SMALL)
        for family in ("trn3pd98", "trn3sn", "trn3s-es", "trn3sn-es")
    ),
    *(
        _instance(f"{family}.48xlarge", TRAINIUM3, 16, None, Topology.SWITCH, 256 * GIGA, sources=_TRN3)
        for family in ("trn3", "trn3sn", "trn3s-es", "trn3sn-es", "trn3p")
    ),
)

UNDESCRIBED = {
    "trn3e.24xlarge": f"the Neuron driver knows it ({DRIVER}), and how many chips it has is not published"
}
"""Sizes that exist and cannot be emulated, and why."""


def instance(name: str) -> Instance:
    """Returns the instance called `name`.  Raises UserError with the nearest names."""
    known = {i.name: i for i in INSTANCES}
    if name in known:
        return known[name]
    if name in UNDESCRIBED:
        raise UserError(f"--instance {name}: {UNDESCRIBED[name]}; give another size", "instance")
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or list(known)
    raise UserError(f"--instance: unknown instance {name!r}; did you mean {', '.join(near)}?", "instance")
