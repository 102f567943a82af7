"""Chat templates that requests bring."""

from __future__ import annotations

import threading
from collections import OrderedDict

from corepipe.errors import UserError
from corepipe.models.text.tokenizer import Tokenizer

MOST_TEMPLATES = 4
"""The most templates that are kept: each has a process that renders."""


class RequestTemplates:
    """Copies of a server's tokenizer with chat templates from requests.  Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._own = tokenizer
        self._known: OrderedDict[str, Tokenizer] = OrderedDict()
        self._lock = threading.Lock()

    def tokenizer(self, template: str) -> Tokenizer:
        """Returns the tokenizer with this template.  Raises UserError for an invalid or malicious one."""
        with self._lock:
            found = self._known.get(template) or self._made(template)
            self._known[template] = found
            self._known.move_to_end(template)
            if len(self._known) > MOST_TEMPLATES:
                self._known.popitem(last=False)
            return found

    def _made(self, template: str) -> Tokenizer:
        try:
            return self._own.with_chat_template(template)
        except UserError as error:
            raise UserError(error.message, "chat_template") from error
