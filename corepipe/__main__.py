"""The `corepipe` command, also as `python -m corepipe`: what it imports comes after it can be interrupted."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point.  An interrupt is one line, from the first import on; a server under way ends with 0."""
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
