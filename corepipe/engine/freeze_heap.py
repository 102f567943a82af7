"""Memory after loading: objects that stay are not collected again, and memory that only loading needed is
returned."""

from __future__ import annotations

import ctypes
import gc
import sys


def freeze_heap() -> None:
    """Removes the objects that are loaded by now from garbage collection, which would visit them in the
    middle of requests.

    Free memory is returned to the system.
    """
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Returns free memory to the system; after reading a vocabulary, glibc keeps megabytes, again for each
    thread that reads one."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
        if trim is not None:
            trim(0)
