"""Kernels for Ops of small models, as files that tests write."""

from __future__ import annotations

from pathlib import Path

HEAD = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


def note():
    with open(__file__ + ".runs", "a") as file:
        print("run", file=file)
"""

NORM = """
@nki.jit
def {name}({parameters}):
    rows, n = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    {first}
    gains = nl.load(gain.reshape((1, n)))
    for i in nl.affine_range(-(-rows // 128)):
        row, column = i * 128 + nl.arange(128)[:, None], nl.arange(n)[None, :]
        tile = nl.load(x[row, column], mask=(row < rows))
        factor = nl.rsqrt(nl.sum(nl.square(tile), axis=[1]) / n + {eps})
        nl.store(
            out[row, column], value=tile * factor * gains.broadcast_to((128, n)){then}, mask=(row < rows)
        )
    return out
"""

WRONG = """
@nki.jit
def half_a_row(x, gain):
    out = nl.ndarray((1, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out[0:1, 0:32], value=nl.load(x[0:1, 0:32]))
    return out


@nki.jit
def whole_tiles(x, gain):
    assert x.shape[0] % 128 == 0, "rows must fill the partitions"
    return x


number = 5
"""


def norm(name: str, parameters: str = "x, gain", first: str = "", eps: str = "1e-5", then: str = "") -> str:
    """Returns a norm's source; first: a line before the work, then: what its results are changed by."""
    return NORM.format(name=name, parameters=parameters, first=first, eps=eps, then=then)


def write(folder: Path) -> Path:
    """Writes norms that are right, that are wrong, and that count their runs in a file beside them."""
    path = folder / "norms.py"
    kernels = [
        norm("right"),
        norm("any_eps", "x, gain, eps", eps="eps"),
        norm("counted", first="note()"),
        norm("doubled", then=" * 2.0"),
        norm("without_gain", then=" * 0.0 + tile * factor"),
        WRONG,
    ]
    path.write_text(HEAD + "\n".join(kernels))
    return path
