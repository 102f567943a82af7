"""neuron-ls's table and JSON for an emulated instance (tools/neuron-sys-tools/neuron-ls.rst)."""

from __future__ import annotations

import json

from corepipe.neuron.chips.hardware import GIB, Instance, hypothetical

NOT_EMULATED = "-"
"""Shown where a real instance shows PCI addresses, CPUs and NUMA nodes."""

_HEADERS = (
    ("NEURON", "DEVICE"),
    ("NEURON", "CORES"),
    ("NEURON", "CORE IDS"),
    ("NEURON", "MEMORY"),
    ("CONNECTED", "DEVICES"),
    ("PCI", "BDF"),
    ("CPU", "AFFINITY"),
    ("NUMA", "NODE"),
)


def table(instance: Instance) -> str:
    """Returns the text that neuron-ls prints, labelled as emulated."""
    rows = [_cells(instance, chip) for chip in range(instance.chips)]
    columns = zip(*rows, strict=True)
    widths = [max(map(len, (*header, *cells))) for header, cells in zip(_HEADERS, columns, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    heads = (_line(line, widths, "^") for line in zip(*_HEADERS, strict=True))
    body = (_line(row, widths, "<") for row in rows)
    return "\n".join((*_title(instance), rule, *heads, rule, *body, rule))


def as_json(instance: Instance) -> str:
    """Returns the array that `neuron-ls --json-output` prints, with `"emulated": true` in each device."""
    return json.dumps([_device(instance, chip) for chip in range(instance.chips)], indent=4)


def _title(instance: Instance) -> tuple[str, ...]:
    title = [f"instance-type: {instance.name} ({instance.standing})", "instance-id: emulated"]
    if instance.hypothetical:
        title.append(f"hypothetical: {instance.hypothetical}")
    if instance.chip.default_lnc > 1:
        title.append(f"logical-neuroncore-config: {instance.lnc}")
    return tuple(title)


def _line(cells: tuple[str, ...], widths: list[int], align: str) -> str:
    return "|" + "|".join(f" {cell:{align}{width}} " for cell, width in zip(cells, widths, strict=True)) + "|"


def _core_ids(instance: Instance, chip: int) -> range:
    return range(chip * instance.cores_per_chip, (chip + 1) * instance.cores_per_chip)


def _cells(instance: Instance, chip: int) -> tuple[str, ...]:
    cores = _core_ids(instance, chip)
    return (
        str(chip),
        str(len(cores)),
        f"{cores[0]}-{cores[-1]}",
        f"{instance.chip.memory_bytes // GIB} GB",
        ", ".join(map(str, instance.neighbours(chip))),
        *[NOT_EMULATED] * 3,
    )


def _device(instance: Instance, chip: int) -> dict[str, object]:
    return {
        "neuron_device": chip,
        "bdf": NOT_EMULATED,
        "cpu_affinity": NOT_EMULATED,
        "numa_node": NOT_EMULATED,
        "connected_to": list(instance.neighbours(chip)),
        "nc_count": instance.cores_per_chip,
        "logical_neuroncore_config": instance.lnc,
        "memory_size": instance.chip.memory_bytes,
        "neuroncore_ids": list(_core_ids(instance, chip)),
        "neuron_processes": [],
        "emulated": True,
        **hypothetical(instance),
    }
