"""The process in which `grammar_checker` checks: `python -m corepipe.structured.grammar_sandbox SECONDS`.

Its input is a socket: it reads one GrammarQuestion at a time and writes a GrammarVerdict for each.  If a
schema, a regular expression or a grammar takes too much time or memory, the kernel ends only this process.
"""

from __future__ import annotations

import contextlib
import sys

import msgspec

from corepipe import sandbox
from corepipe.errors import UserError
from corepipe.sandbox import MAX_FRAME, receive, send, time_limit
from corepipe.structured.constraints import Constraint
from corepipe.structured.grammar_checker import GrammarQuestion, GrammarVerdict, failed
from corepipe.structured.grammars import grammar_of

MAX_MEMORY = 1 << 30
"""Bytes of address space."""

WARM = (Constraint("json_object", '{"type":"object"}', ""), Constraint("grammar", 'root ::= "a"', ""))
"""Constraints that import everything while files can still be opened."""


def main(cpu_seconds: float) -> None:
    """Answers questions until the other end is closed."""
    connection = sandbox.connection()
    for constraint in WARM:
        _verdict(GrammarQuestion(constraint))
    sandbox.confine(MAX_MEMORY)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            question = msgspec.msgpack.decode(receive(connection, MAX_FRAME), type=GrammarQuestion)
            with time_limit(cpu_seconds):
                verdict = _verdict(question)
            send(connection, msgspec.msgpack.encode(verdict))


def _verdict(question: GrammarQuestion) -> GrammarVerdict:
    try:
        return GrammarVerdict(grammar=grammar_of(question.constraint, question.spelling))
    except UserError as error:
        return failed(error)


if __name__ == "__main__":
    main(float(sys.argv[1]))
