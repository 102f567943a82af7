"""Chat templates that requests bring, for servers that take them (`--trust-request-chat-template`)."""

from __future__ import annotations

import threading
from collections import OrderedDict

from corepipe.errors import UserError
from corepipe.models.text.tokenizer import Tokenizer

MOST = 4
"""Templates that are kept: each has a process that renders."""


class RequestTemplates:
    """A server's tokenizer with other templates.  Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._own = tokenizer
        self._known: OrderedDict[str, Tokenizer] = OrderedDict()
        self._lock = threading.Lock()

    def tokenizer(self, template: str) -> Tokenizer:
        """The one that renders by this template; raises UserError for one that is not valid, or hostile."""
        with self._lock:
            found = self._known.get(template) or self._made(template)
            self._known[template] = found
            self._known.move_to_end(template)
            if len(self._known) > MOST:
                self._known.popitem(last=False)
            return found

    def _made(self, template: str) -> Tokenizer:
        try:
            return self._own.with_chat_template(template)
        except UserError as error:
            raise UserError(error.message, "chat_template") from error
