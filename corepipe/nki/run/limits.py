"""Limits of the process in which a kernel runs: memory, time, and no files to write.

It is no sandbox: the code has the rights of the user, who asked to run it.  The limits end what would go on
for ever, and refuse what a kernel does only by mistake.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from corepipe.errors import UserError, shown

CHANGES = frozenset(
    {"os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
)
"""Python's audit events that change files; `open` may."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

DEVICES = "/dev/"
"""A folder whose files can be written: they keep nothing."""


@contextmanager
def limited(memory: int, seconds: float) -> Iterator[None]:
    """Limits this process: bytes of memory beside those in use now, and seconds until SIGALRM.

    Python's calls that would write a file raise UserError before there is one; writes of other code fail.
    """
    active = True

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if active and (event == "open" or event in CHANGES):
            _refuse_changes(event, arguments)

    sys.addaudithook(audit)  # for the rest of the process
    most = {
        resource.RLIMIT_AS: psutil.Process().memory_info().vms + memory,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
    }
    before = {limit: resource.getrlimit(limit) for limit in most}
    _set({limit: (value, before[limit][1]) for limit, value in most.items()})
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _set(before)
        active = False


def _set(limits: Mapping[int, tuple[int, int]]) -> None:
    for limit, values in limits.items():
        with suppress(OSError, ValueError):  # where a system does not have it, or less is allowed
            resource.setrlimit(limit, values)


def _refuse_changes(event: str, arguments: tuple[Any, ...]) -> None:
    path, *_, flags = arguments
    if isinstance(path, int) or (event == "open" and not flags & WRITING):
        return
    name = os.fsdecode(path)
    if not name.startswith(DEVICES):
        raise UserError(f"changes the file {shown(name)}, which a kernel may not")
