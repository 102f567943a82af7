"""A probe of a server's health, for container images without curl: `python -m corepipe.probe [URL]`.

It exits with 0 if URL answers 200 within four seconds, else with 1 and a line with the reason.  It is not a
command of `corepipe`: container engines run it every few seconds, and it only needs the standard library.
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
    """Returns why `url`, requested without a proxy, is not healthy; None if it is."""
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
    """Accepts any certificate, as a kubelet's probe does: it connects by address and sends no secrets."""
    context = ssl.create_default_context()
    # ast-grep-ignore: verified-tls -- nothing is said to the server, nor believed of it but its status
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def main(arguments: Sequence[str]) -> int:
    """Probes the URL in the arguments, if any, and returns the exit code."""
    url = arguments[0] if arguments else DEFAULT_URL
    problem = failure(url)
    if problem is not None:
        print(f"{url}: {problem}", file=sys.stderr)  # noqa: T201
    return int(problem is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
