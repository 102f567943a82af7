"""`python -m corepipe.probe [URL]`: whether a server takes requests, for images without curl.

Exits with 0 if URL answers 200 within four seconds, else with 1 and a line that says why.  Not a command of
`corepipe`: container engines run it every few seconds, and it needs the standard library alone.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Sequence
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

DEFAULT_URL = "http://127.0.0.1:8000/health"
SECONDS = 4.0
OK = 200


def failure(url: str) -> str | None:
    """Why `url`, asked without a proxy, is not healthy; None if it is."""
    try:
        with build_opener(ProxyHandler({}), HTTPSHandler(context=_unchecked())).open(
            url, timeout=SECONDS
        ) as answer:
            return None if answer.status == OK else f"{answer.status} {answer.reason}"
    except HTTPError as error:
        return f"{error.code} {error.read(200).decode(errors='replace')}"
    except (OSError, HTTPException, ValueError) as error:
        return f"no answer ({error})"


def _unchecked() -> ssl.SSLContext:
    """Takes any certificate, as a kubelet's probe does: it is asked for by address, and told no secrets."""
    context = ssl.create_default_context()
    # ast-grep-ignore: verified-tls -- nothing is said to the server, nor believed of it but its status
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def main(arguments: Sequence[str]) -> int:
    """The exit code; at most one argument, the URL."""
    url = arguments[0] if arguments else DEFAULT_URL
    problem = failure(url)
    if problem is not None:
        print(f"{url}: {problem}", file=sys.stderr)  # noqa: T201
    return int(problem is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
