"""The `corepipe` command, also as `python -m corepipe`; it can be interrupted before its imports begin."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command.  An interrupt prints one line, from the first import on; a server exits with 0."""
    try:
        from corepipe import signals  # noqa: PLC0415 -- nothing before it can be interrupted

        signals.end_at_once_while_importing()
        from corepipe.imports import uncollected  # noqa: PLC0415

        with uncollected():
            from corepipe.cli.app import main as run  # noqa: PLC0415 -- takes a while
        run()
    except KeyboardInterrupt:
        from corepipe import signals  # noqa: PLC0415 -- nothing before it can be interrupted

        print(signals.INTERRUPTED_LINE, file=sys.stderr)  # noqa: T201
        sys.exit(signals.INTERRUPTED)


if __name__ == "__main__":
    main()
