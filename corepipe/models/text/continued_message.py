"""A prompt that ends within its last message, for the model to continue, as transformers renders it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from corepipe.models.text.chat import TemplateRefusalError

FIELD = "continue_final_message"


class ContinuedMessage:
    """Messages with a mark at the end of the last one's text: the prompt ends where it is rendered.

    Raises TemplateRefusalError for a last message without text.
    """

    def __init__(self, messages: Sequence[Mapping[str, object]]) -> None:
        self._mark = f"END-{secrets.token_hex(8)}"
        last = dict(messages[-1]) if messages else {}
        self._text, last["content"] = self._marked(last.get("content"))
        self.messages: list[Mapping[str, object]] = [*messages[:-1], last]

    def cut(self, rendered: str) -> str:
        """Returns a rendering of `messages` up to the mark.

        Where the template removed the space after the mark, it would also have removed that before it. Raises
        TemplateRefusalError where it changed the text.
        """
        at = rendered.rfind(self._mark)
        if at < 0 or self._text.strip() not in rendered:
            message = f"{FIELD}: the chat template does not render the last message as it is"
            raise TemplateRefusalError(message, FIELD)
        kept = rendered[:at]
        return kept if rendered.startswith(" ", at + len(self._mark)) else kept.rstrip()

    def _marked(self, content: object) -> tuple[str, object]:
        """Returns a content's text, and the content with a mark after it, or after its last part's text."""
        if isinstance(content, str):
            return content, f"{content}{self._mark} "
        parts = list(content) if isinstance(content, Sequence) else []
        for at in reversed(range(len(parts))):
            part = parts[at]
            if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
                parts[at] = {**part, "text": f"{text}{self._mark} "}
                return text, parts
        raise TemplateRefusalError(f"{FIELD}: the last message has no text to continue", FIELD)
