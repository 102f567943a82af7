"""The engine's process: `python -m corepipe.engine.process FD HEARTBEAT`, two file descriptors.

FD: its end of a socket pair; HEARTBEAT: the memory that its server reads (`heartbeat`).
"""

from __future__ import annotations

import sys

from corepipe.imports import uncollected


def main(fd: int, heartbeat_fd: int) -> int:
    """Runs the engine; returns the exit code."""
    with uncollected():
        from corepipe.engine.assembly.assembly import assemble  # noqa: PLC0415 -- imports all of an engine
        from corepipe.engine.process.session import attend  # noqa: PLC0415 -- as above
    return attend(fd, heartbeat_fd, assemble)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
