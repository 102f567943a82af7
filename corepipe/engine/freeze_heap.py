"""After loading: what stays is not looked at again, and what was needed only to load is given back."""

from __future__ import annotations

import ctypes
import gc
import sys


def freeze_heap() -> None:
    """Takes what is loaded by now out of the collector's sight: it would walk it in the middle of requests.

    Memory that is free goes back to the system.
    """
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Memory that is free goes back to the system; of a vocabulary that has been read, glibc keeps megabytes,
    for each thread that reads one anew."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(0)
