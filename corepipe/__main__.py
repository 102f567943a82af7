"""The `corepipe` command, also as `python -m corepipe`: what it imports comes after it can be interrupted."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point.  An interrupt is one line, from the first import on; a server under way ends with 0."""
    try:
        from corepipe.imports import uncollected  # noqa: PLC0415 -- nothing before it can be interrupted

        with uncollected():
            from corepipe.cli.app import main as run  # noqa: PLC0415 -- takes a while
        run()
    except KeyboardInterrupt:
        print("corepipe: interrupted", file=sys.stderr)  # noqa: T201
        from corepipe.signals import INTERRUPTED  # noqa: PLC0415 -- nothing before it can be interrupted

        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
