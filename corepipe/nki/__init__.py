"""NKI: kernels in AWS's kernel language, run and timed without a device."""

from corepipe.nki.run.simulate import Result, installed, simulate

__all__ = ["Result", "installed", "simulate"]
