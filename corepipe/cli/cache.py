"""Show what the cache holds, or remove some of it."""

from __future__ import annotations

from corepipe.cli.flags.options import as_json, option

COMMANDS = {
    "ls": (
        "Show the fetched models and packed weights, their sizes and when they were last used.",
        (as_json(),),
    ),
    "prune": (
        "Remove models and packed weights that no process uses.",
        (
            option("--older-than", str, "Remove what was not used for this long, such as 12h or 30d."),
            option(
                "--max-size",
                str,
                "Remove the least recently used until the cache has this size, such as 500MB or 2GB.",
            ),
            option("--all", bool, "Remove everything that no process uses."),
            option("--dry-run", bool, "Print what would be removed, and remove nothing."),
            as_json(),
        ),
    ),
}
"""The commands, their helps and flags."""
