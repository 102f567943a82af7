"""Files of small kernels, in either dialect, for the tests of `corepipe nki`."""

from __future__ import annotations

from pathlib import Path

LEGACY = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np


@nki.jit
def scaled(x, factor=2.0):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = nl.arange(128)[:, None], nl.arange(512)[None, :]
    tile = nl.load(x[rows, columns])
    nl.store(out[rows, columns], nisa.tensor_scalar(tile, np.multiply, factor))
    return out
"""

CURRENT = """
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np


@nki.jit
def scaled(x, factor=2.0):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""

GRID = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import numpy as np


@nki.jit
def scaled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = 32 * nl.program_id(0) + nl.arange(32)[:, None]
    columns = nl.arange(512)[None, :]
    nl.store(out[rows, columns], nl.load(x[rows, columns]) * 2.0)
    return out
"""
"""A kernel of four programs, each of which computes 32 rows."""

SPEAKING = LEGACY.replace("    out =", '    print("a kernel says something")\n    out =')

REFERENCE = """

def get_inputs():
    return (np.random.rand(128, 512).astype(np.float32),)


def reference(x, factor=2.0):
    return x * factor


def wrong(x, factor=2.0):
    return x * factor + 0.5
"""


def written(folder: Path, name: str, text: str) -> str:
    """Writes a file and returns its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def kernel_that(does: str) -> str:
    """Returns the text of a file whose kernel executes these lines."""
    lines = "".join(f"    {line}\n" for line in does.splitlines())
    return (
        f"import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\n@nki.jit\ndef kernel(x):\n{lines}"
    )
