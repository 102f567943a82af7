"""The content of Anthropic's messages: blocks of each type, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_BLOCKS = 2048
"""The most blocks of a message."""


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mark up to which a prompt should be cached; the prefix cache keeps every prompt while it has room.

    scope: with whom it may be shared; here it is shared within a key.
    """

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Annotated[str, Meta(max_length=64)] | None = None


class Citations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wish that the answer cites a document."""

    enabled: bool = False


class Block(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A block of a message's content."""

    cache_control: CacheControl | None = None


class TextBlock(Block, frozen=True, kw_only=True, tag="text"):
    """Text; the citations of an answer and its parsed form come back from clients, and say nothing more."""

    text: str
    citations: list[Any] | None = None
    parsed_output: Any = None


Texts = Annotated[list[TextBlock], Meta(max_length=MAX_BLOCKS)]


class ImageBlock(Block, frozen=True, kw_only=True, tag="image"):
    """An image, which is refused: models here read text."""

    source: dict[str, Any]
    transformations: Any = None


class TextSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="text"):
    """A document as a text."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="content"):
    """A document as blocks."""

    content: str | Annotated[list[TextBlock | ImageBlock], Meta(max_length=MAX_BLOCKS)]


class DataSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="base64"):
    """A document as a file, which is refused."""

    data: str
    media_type: str


class UrlSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="url"):
    """A document elsewhere, which is refused: nothing is fetched."""

    url: str


class FileSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="file"):
    """An uploaded document, which is refused."""

    file_id: str


class DocumentBlock(Block, frozen=True, kw_only=True, tag="document"):
    """A document, of which the model reads title, context and text."""

    source: TextSource | ContentSource | DataSource | UrlSource | FileSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(Block, frozen=True, kw_only=True, tag="search_result"):
    """A result of a search by the client."""

    source: str
    title: str
    content: Texts
    citations: Citations | None = None


class ToolReferenceBlock(Block, frozen=True, kw_only=True, tag="tool_reference"):
    """The name of a tool that the client has found; the model knows all tools from the beginning."""

    tool_name: str


class ToolUseBlock(Block, frozen=True, kw_only=True, tag="tool_use"):
    """A call of a tool by the model."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None
    toolset_name: str | None = None


ResultContent = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(Block, frozen=True, kw_only=True, tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    content: str | Annotated[list[ResultContent], Meta(max_length=MAX_BLOCKS)] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None


class ThinkingBlock(Block, frozen=True, kw_only=True, tag="thinking"):
    """The model's reasoning.  Its signature is not checked: it may come from another server."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    """Reasoning that another server has encrypted; it has no effect."""

    data: str


UserContent = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock
AssistantContent = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class _Turn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="role"):
    """A message of a conversation."""


class UserTurn(_Turn, frozen=True, kw_only=True, tag="user"):
    """A message of the user, with results of calls."""

    content: str | Annotated[list[UserContent], Meta(max_length=MAX_BLOCKS)]


class AssistantTurn(_Turn, frozen=True, kw_only=True, tag="assistant"):
    """A message of the model; as the last message it is continued."""

    content: str | Annotated[list[AssistantContent], Meta(max_length=MAX_BLOCKS)]


class SystemTurn(_Turn, frozen=True, kw_only=True, tag="system"):
    """Instructions within a conversation."""

    content: str | Texts


Turn = UserTurn | AssistantTurn | SystemTurn
