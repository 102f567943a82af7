"""Weights in huge pages: a step reads them from end to end, and with small pages a single token takes half as
long again (measured on Zen 4 under virtualisation).

A mapped file has huge pages only where the kernel and the file system keep them in the page cache, which also
depends on how the file was written or read.  So the mapping is tried, and where its pages are small the
weights are copied into anonymous memory, which processes do not share.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
from io import BufferedReader
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

HUGE = 2 * 1024 * 1024
"""Bytes of a huge page (x86-64, and aarch64 with 4 KiB pages)."""

MADV_POPULATE_READ = 22
"""Linux 5.14: map all pages now (include/uapi/asm-generic/mman-common.h)."""

ENOUGH = 0.5
"""Share of huge pages from which on a mapped file is used as it is."""

AREA = re.compile(rb"^(?:([0-9a-f]+)-([0-9a-f]+) |FilePmdMapped: +(\d+) kB)", re.MULTILINE)
"""Matches in /proc/self/smaps the address range of a memory area, and its part in huge pages of a file."""


def read(file: BufferedReader, mapping: mmap.mmap, nbytes: int) -> npt.NDArray[np.uint8]:
    """Returns the first `nbytes` of `file`, in huge pages if possible: part of its `mapping`, or a copy.

    Raises ValueError where the file has become shorter.
    """
    mapped = np.frombuffer(mapping, np.uint8, nbytes)
    if nbytes < HUGE or sys.platform != "linux":
        return mapped
    _advise(mapping, nbytes)
    if _huge_share(mapped) >= ENOUGH or not _on_request():
        return mapped
    forget_mapped(mapping, 0, nbytes)
    return _copy(file, nbytes)


def forget_mapped(mapping: mmap.mmap, begin: int, nbytes: int) -> None:
    """Unmaps pages of a file until they are read again: they no longer count as memory of this process."""
    if sys.platform == "linux":
        mapping.madvise(mmap.MADV_DONTNEED, begin, nbytes)


def forget_written(file: IO[bytes]) -> None:
    """Drops a file that is on disk from the page cache: it is read back in huge pages, but was written in
    small ones."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _advise(mapping: mmap.mmap, nbytes: int) -> None:
    for advice in (mmap.MADV_HUGEPAGE, MADV_POPULATE_READ):
        with contextlib.suppress(OSError):  # an older kernel
            mapping.madvise(advice, 0, nbytes)


def _huge_share(mapped: npt.NDArray[np.uint8]) -> float:
    """Returns the share of the mapped bytes that are in huge pages."""
    begin = mapped.ctypes.data
    end, huge, inside = begin + mapped.nbytes, 0, False
    for match in AREA.finditer(Path("/proc/self/smaps").read_bytes()):
        first, last, kib = match.groups()
        if kib is None:
            inside = int(first, 16) < end and int(last, 16) > begin
        elif inside:
            huge += int(kib) * 1024
    return huge / mapped.nbytes


def _on_request() -> bool:
    """Returns True if anonymous memory gets huge pages on request."""
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(
            encoding="ascii"
        )
    except OSError:
        return False


def _copy(file: BufferedReader, nbytes: int) -> npt.NDArray[np.uint8]:
    memory = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE
    memory.madvise(mmap.MADV_HUGEPAGE)
    file.seek(0)
    copy = whole[start : start + nbytes]
    if file.readinto(copy.data) != nbytes:
        raise ValueError("the file became shorter while it was read")
    copy.flags.writeable = False
    return copy
