"""Some rows of a weight equal those of the whole, in every layout, and cost as much memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from corepipe.models import registry
from corepipe.models.registry import Model
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host import blocks
from corepipe.neuron.host.weights import InMemoryWeights, packed_weights
from corepipe.neuron.host.weights import reader as reads
from corepipe.neuron.numerics.int4 import Int4, Int8, Stored, taken
from corepipe.neuron.values import WeightRole
from tests.models import ggufs
from tests.models.test_four_bits import packed_model
from tests.models.test_mxfp4 import packed_model as mxfp4_model
from tests.parity import expected
from tests.parity.families import TINY

ROWS = (slice(0, 1), slice(7, 40), slice(31, 33))
FOUR, EIGHT = FORMATS["int4-weights"], FORMATS["int8"]


def family(folder: Path, name: str) -> Model:
    return registry.load(expected.load(name).write(folder / "model"))


def gguf_file(folder: Path, encoding: Type) -> Model:
    ggufs.convert(TINY / "llama2", folder / "m.gguf", encoding)
    return registry.load(folder / "m.gguf")


def packed(folder: Path, method: str) -> Model:
    return registry.load(packed_model(folder / "model", method)[0])


MODELS = [
    pytest.param(family, "llama", id="as they are"),
    pytest.param(family, "gpt2", id="transposed, queries keys and values in one"),
    pytest.param(family, "falcon-new", id="by group"),
    pytest.param(family, "phi3", id="in turn"),
    pytest.param(family, "gptj", id="pairs"),
    pytest.param(family, "gemma", id="gains less one"),
    pytest.param(family, "gpt_oss", id="columns of two matrices in turn"),
    pytest.param(lambda folder, _: registry.load(mxfp4_model(folder)[1]), None, id="MXFP4"),
    pytest.param(gguf_file, Type.F16, id="GGUF, pairs"),
    pytest.param(gguf_file, Type.Q4_1, id="GGUF of four bits, pairs"),
    pytest.param(gguf_file, Type.Q8_0, id="GGUF of eight bits, pairs"),
    pytest.param(packed, "gptq", id="GPTQ"),
    pytest.param(packed, "awq", id="AWQ"),
]


def parts(weight: Stored) -> tuple[np.ndarray | None, ...]:
    if isinstance(weight, Int4):
        return weight.values, weight.scale, weight.offset
    return tuple(weight) if isinstance(weight, Int8) else (weight,)


@pytest.mark.parametrize(("make", "what"), MODELS)
def test_some_rows_are_those_of_the_whole(tmp_path: Path, make, what) -> None:
    model = make(tmp_path, what)
    checkpoint, graph = model.checkpoint, model.graph(FOUR)
    for spec in graph.weights():
        name = graph.tied.get(spec.name, spec.name)
        whole = checkpoint.read(name)
        for rows in ROWS if len(spec.shape) > 1 else ():
            np.testing.assert_array_equal(checkpoint.read(name, rows), whole[rows])
            if spec.role is WeightRole.MATRIX:
                some, want = checkpoint.stored(name, rows), taken(checkpoint.stored(name), rows)
                assert type(some) is type(want)
                for part, other in zip(parts(some), parts(want), strict=True):
                    np.testing.assert_array_equal(part, other)


@pytest.mark.parametrize(("make", "what"), MODELS)
@pytest.mark.parametrize("fmt", [FOUR, EIGHT], ids=["int4", "int8"])
def test_blocks_on_threads_make_the_file_of_the_whole(tmp_path: Path, monkeypatch, make, what, fmt) -> None:
    model = make(tmp_path, what)
    graph = model.graph(fmt)
    whole = packed_weights(graph, model.checkpoint, tmp_path / "whole").path.read_bytes()
    monkeypatch.setattr(blocks, "ELEMENTS", 1)  # a panel at a time
    assert max(len(blocks.blocks_of(spec)) for spec in graph.weights()) > 2
    found = packed_weights(graph, model.checkpoint, tmp_path / "blocks", threads=3)
    assert found.path.read_bytes() == whole
    memory = InMemoryWeights(graph, reads(graph, model.checkpoint))
    for spec in graph.weights():
        np.testing.assert_array_equal(found[spec.name].data, memory[spec.name].data)


def test_what_is_by_rows_reads_no_others(tmp_path: Path) -> None:
    """A checkpoint that ends after the first rows of its largest tensor still gives these rows."""
    model = family(tmp_path, "llama")
    file = tmp_path / "model" / "model.safetensors"
    name = "model.embed_tokens.weight"
    checkpoint = model.checkpoint
    want = checkpoint.read(name)[:2]
    with file.open("rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0]
        begin = json.loads(stream.read(length))[name]["data_offsets"][0]
    with file.open("r+b") as stream:
        stream.truncate(8 + length + begin + want.size * 4)
    np.testing.assert_array_equal(checkpoint.read(name, slice(0, 2)), want)


PEAK = """
import re, sys
from pathlib import Path
from corepipe.models import registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

model = registry.load(Path(sys.argv[1]))
graph = model.graph(FORMATS["int8"], 64)
before = peak()
packed = packed_weights(graph, model.checkpoint, Path(sys.argv[2]), threads=2)
print(packed.path.stat().st_size, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_packing_and_loading_take_little_more_memory_than_the_packed_weights(tmp_path: Path) -> None:
    """The table has 64 million values, which as fp32 alone exceed all that is packed."""
    config = json.loads((TINY / "llama2" / "config.json").read_text())
    config |= {
        "vocab_size": 1 << 17,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "tie_word_embeddings": True,
    }
    config |= {"intermediate_size": 64, "num_key_value_heads": 8, "num_hidden_layers": 1, "head_dim": 64}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_zeros(folder / "model.safetensors", shapes_of(config))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, folder, tmp_path / "packed"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    nbytes, grown = map(int, done.stdout.split())
    assert nbytes > 3 * config["vocab_size"] * config["hidden_size"]
    assert grown <= 1.2 * nbytes


def shapes_of(config: dict) -> dict[str, tuple[int, ...]]:
    hidden, ffn, layer = config["hidden_size"], config["intermediate_size"], "model.layers.0."
    names = {f"{layer}self_attn.{one}_proj.weight": (hidden, hidden) for one in "qkvo"}
    names |= {f"{layer}mlp.{one}_proj.weight": (ffn, hidden) for one in ("gate", "up")}
    names |= {f"{layer}mlp.down_proj.weight": (hidden, ffn), "model.norm.weight": (hidden,)}
    norms = ("input_layernorm", "post_attention_layernorm")
    names |= {f"{layer}{norm}.weight": (hidden,) for norm in norms}
    return names | {"model.embed_tokens.weight": (config["vocab_size"], hidden)}


def write_zeros(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Writes tensors of bf16 as a sparse file."""
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + at)
