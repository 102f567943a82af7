"""Checks of elements that instructions read: they are in the tensor, and something wrote them."""

from __future__ import annotations

from corepipe.nki.core.recorder import Recorder
from corepipe.nki.core.tensors import View
from corepipe.nki.rules.breaking import described, found
from corepipe.nki.rules.check import check_bounds


def check_read(recorder: Recorder, view: View) -> None:
    """Raises KernelError where a view leaves its tensor, and notes elements that nothing has written.

    Call it before the view's elements are read: numpy does not check the strides.
    """
    check_bounds(recorder, view)
    flags = view.written()
    if flags is not None and not flags.all():
        missing = int(flags.size - flags.sum())
        found(recorder, "uninitialised", operand=described(view), found=missing, count=flags.size)
