"""Every number has its source, the topology is that of neuron-ls, and an unknown name gets suggestions."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from corepipe.errors import UserError
from corepipe.neuron.chips.catalog import INSTANCES, instance
from corepipe.neuron.chips.hardware import GIB, Sourced, Support
from corepipe.neuron.formats import FORMATS, TIMED_FORMATS, DType

FAMILIES = {
    "inf1": {"xlarge", "2xlarge", "6xlarge", "24xlarge"},
    "inf2": {"xlarge", "8xlarge", "24xlarge", "48xlarge"},
    "trn1": {"2xlarge", "32xlarge"},
    "trn1n": {"32xlarge"},
    "trn2": {"3xlarge", "48xlarge"},
    "trn2u": {"48xlarge"},
    "trn3": {"48xlarge"},
    "trn3p": {"48xlarge"},
    "trn3pd98": {"3xlarge"},
    "trn3sn": {"3xlarge", "48xlarge"},
    "trn3s-es": {"3xlarge", "48xlarge"},
    "trn3sn-es": {"3xlarge", "48xlarge"},
}


def _records(record: Sourced) -> list[Sourced]:
    below = [getattr(record, f.name) for f in fields(record)]
    return [record, *(r for b in below if isinstance(b, Sourced) for r in _records(b))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | tuple | dict)


@pytest.mark.parametrize("machine", INSTANCES, ids=lambda i: i.name)
def test_every_number_has_a_source(machine):
    for record in _records(machine):
        assert set(record.sources) <= {field.name for field in fields(record)}
        for field in fields(record):
            if field.name != "sources" and _is_number(getattr(record, field.name)):
                assert record.sources.get(field.name), f"{type(record).__name__}.{field.name}"


def test_families_and_sizes_are_complete():
    found = {}
    for machine in INSTANCES:
        family, _, size = machine.name.partition(".")
        found.setdefault(family, set()).add(size)
    assert found == FAMILIES


@pytest.mark.parametrize(
    ("name", "cores", "memory", "bandwidth"),
    [
        ("inf1.24xlarge", 64, 128, 800),
        ("inf2.48xlarge", 24, 384, 9840),
        ("trn1.32xlarge", 32, 512, 13120),
        ("trn2.48xlarge", 64, 1536, 46.4e12 / GIB),
    ],
)
def test_totals_are_those_of_the_instance_pages(name, cores, memory, bandwidth):
    machine = instance(name)
    assert machine.cores == cores
    assert machine.chips * machine.chip.memory_bytes == memory * GIB
    assert machine.chips * machine.chip.memory_bytes_per_second == pytest.approx(bandwidth * GIB)


def test_neighbours_are_those_neuron_ls_shows():
    assert instance("inf2.48xlarge").neighbours(0) == (11, 1)
    assert instance("trn1.32xlarge").neighbours(0) == (12, 3, 4, 1)
    assert instance("trn2.48xlarge").neighbours(0) == (12, 3, 4, 1)
    assert instance("inf1.6xlarge").neighbours(0) == (1,)
    assert instance("inf2.xlarge").neighbours(0) == ()


@pytest.mark.parametrize("machine", INSTANCES, ids=lambda i: i.name)
def test_links_go_both_ways_and_reach_every_chip(machine):
    for chip in range(machine.chips):
        near = machine.neighbours(chip)
        assert chip not in near
        assert len(set(near)) == len(near)
        assert all(chip in machine.neighbours(n) for n in near)
        assert machine.hops(0, chip) == machine.hops(chip, 0) < machine.chips


def test_hops():
    assert instance("inf1.24xlarge").hops(0, 15) == 15
    assert instance("inf2.48xlarge").hops(0, 6) == 6
    assert max(instance("trn1.32xlarge").hops(0, c) for c in range(16)) == 4


def test_logical_cores():
    two = instance("trn2.48xlarge")
    one = two.with_lnc(1)
    assert (two.lnc, two.cores, one.cores) == (2, 64, 128)
    assert two.bank_bytes == 24 * GIB == one.bank_bytes
    assert (two.cores_per_bank, one.cores_per_bank) == (1, 2)
    assert two.peak(DType.BF16) == 2 * one.peak(DType.BF16)
    with pytest.raises(UserError, match="physical cores"):
        instance("inf2.xlarge").with_lnc(2)


def test_which_chip_has_which_format():
    native = {
        name: {f for f, fmt in FORMATS.items() if instance(name).support(fmt) is Support.NATIVE}
        for name in ("inf1.xlarge", "inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge", "trn3.48xlarge")
    }
    assert native == {
        "inf1.xlarge": {"bf16", "int8"},
        "inf2.xlarge": {"fp32", "bf16", "int8", "int8-weights"},
        "trn1.2xlarge": {"fp32", "bf16", "int8", "int8-weights"},
        "trn2.3xlarge": {"fp32", "bf16", "int8-weights"},
        "trn3.48xlarge": {"fp32", "bf16"},
    }


def test_which_chip_has_which_format_of_devices_alone():
    """Plain FP8 on v4 is not listed; MXFP4 is widened, so it needs MXFP8 too."""
    native = {
        name: {
            f for f in ("fp8", "mxfp8", "mxfp4") if instance(name).support(TIMED_FORMATS[f]) is Support.NATIVE
        }
        for name in ("inf2.xlarge", "trn2.3xlarge", "trn3.48xlarge")
    }
    assert native == {
        "inf2.xlarge": {"fp8"},
        "trn2.3xlarge": {"fp8"},
        "trn3.48xlarge": {"mxfp8", "mxfp4"},
    }
    bf16, mx = (instance("trn3.48xlarge").peak(d) for d in (DType.BF16, DType.MXFP8))
    assert mx / bf16 == pytest.approx(4, rel=0.01)


def test_a_format_the_chip_lacks_is_timed_as_the_nearest():
    assert instance("trn2.3xlarge").peak(DType.INT8) == instance("trn2.3xlarge").peak(DType.BF16)
    assert instance("inf1.xlarge").peak(DType.FP32) == instance("inf1.xlarge").peak(DType.BF16) / 4


TRN3 = [i for i in INSTANCES if i.chip.name == "Trainium3"]


@pytest.mark.parametrize("machine", TRN3, ids=lambda i: i.name)
def test_what_nobody_published_of_trn3_is_missing(machine):
    assert machine.hypothetical
    assert "hypothetical" in machine.standing
    missing = (machine.vcpus, machine.host_memory_bytes, machine.price_per_hour, machine.chip.hop_seconds)
    assert missing == (None,) * 4
    assert machine.bank_bytes == 36 * GIB
    assert (machine.lnc, machine.cores_per_bank, machine.with_lnc(1).cores_per_bank) == (2, 1, 2)


def test_conflicts_are_said_and_the_lower_figure_counts():
    machine = instance("trn3.48xlarge")
    assert machine.chip.memory_bytes_per_second == 4.7e12
    assert "4.9" in machine.chip.source("memory_bytes_per_second")
    assert "2.56 TB/s" in machine.source("link_bytes_per_second")
    assert {machine.hops(0, chip) for chip in range(1, 16)} == {1}


def test_nothing_but_trn3_is_hypothetical():
    assert [i for i in INSTANCES if i.hypothetical] == TRN3


def test_a_size_of_which_too_little_is_known_says_so():
    with pytest.raises(UserError, match=r"trn3e\.24xlarge.*how many chips"):
        instance("trn3e.24xlarge")


def test_unknown_instance_names_the_flag_and_the_nearest():
    with pytest.raises(UserError, match=r"--instance.*inf2\.xlarge") as caught:
        instance("inf2.xlarg")
    assert caught.value.param == "instance"
    with pytest.raises(UserError, match=r"trn1n\.32xlarge"):
        instance("???")


def test_price_falls_back_to_the_reserved_one():
    machine = instance("inf2.xlarge")
    assert machine.price_per_hour == 0.758
    assert replace(machine, on_demand_per_hour=None).price_per_hour == 0.328
    assert instance("trn2.48xlarge").price_per_hour is None
    assert instance("trn1n.32xlarge").price_per_hour == 24.78
