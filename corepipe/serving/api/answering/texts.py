"""Prompts from texts, token ids, pairs of texts and images, within limits.

Images come as data URIs; separate processes read them, and nothing is ever fetched.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from corepipe.errors import UserError
from corepipe.models.tasks import Images
from corepipe.models.text.tokenizer import Side
from corepipe.models.vision.preprocessing import COLOURS, FILE
from corepipe.models.vision.reader import DecodedImage
from corepipe.serving.api.answering.long_texts import LONG_TEXT, check_length, encode_text
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.http.errors import ApiError, invalid

READABLE = 65_536
"""Tokens up to which a text is always encoded whole before it is cut: each takes 350 bytes meanwhile."""


class TruncationFields(Protocol):
    """The fields of a body that say how prompts are truncated."""

    @property
    def truncate_prompt_tokens(self) -> int | None: ...
    @property
    def truncation_side(self) -> Side: ...


class Truncation(NamedTuple):
    """A truncation to at most `most` tokens; `side` is the end that is cut off."""

    most: int
    side: Side

    @staticmethod
    def of(body: TruncationFields, context: int, answer: int) -> Truncation | None:
        """Returns the truncation that a body requests, or None.

        context: the tokens of the model's context.  -1 keeps as many as leave room for an answer of `answer`
        tokens.  Raises ApiError for none, and for more than the context has.
        """
        asked = body.truncate_prompt_tokens
        if asked is None:
            return None
        if asked == 0:
            raise invalid("truncate_prompt_tokens must be at least 1, or -1.", "truncate_prompt_tokens")
        if asked > context:
            message = f"truncate_prompt_tokens is at most {context} here (max_model_len)."
            raise invalid(message, "truncate_prompt_tokens")
        return Truncation(max(context - answer, 1) if asked == -1 else asked, body.truncation_side)

    @property
    def readable(self) -> int:
        """The tokens that a text may have before it is cut."""
        return max(self.most, READABLE)


MAX_ENTRIES = 2048
"""Texts, or lists of tokens, in one request; OpenAI's limit."""
MAX_INPUT_TOKENS = 300_000
"""Tokens in one request; OpenAI's limit."""
ENTRY_WORK = 64
"""Characters that take as long to encode as an entry takes besides its characters."""

Input = str | list[str | int | list[int]]
"""A text, token ids, or a list of either."""
E = TypeVar("E")


class EncodedPrompt(NamedTuple):
    """The token ids of a text or of a pair; `second`: the position where the second text begins (0: no pair).

    image: pixels that are read instead, as in `messages.Submit`; `ids` then has a zero for each of its rows.
    """

    ids: list[int]
    second: int = 0
    image: bytes = b""


class TextPair(NamedTuple):
    """Two texts that are read together, and the field that the second came from."""

    first: str
    second: str
    field: str


class EncodingOptions(NamedTuple):
    """Options of encoding a text: at most `most` tokens, truncated as `cut` says; `special`: with the special
    tokens around a text.  `most_second`: tokens kept of a pair's second text (0: all)."""

    most: int
    cut: Truncation | None = None
    special: bool = True
    most_second: int = 0


def entries(given: Input, field: str) -> list[str | list[int]]:
    """Returns the entries of an input of any of the four shapes.  Raises ApiError for a mixture."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid(f"{field} must not be empty.", field)
    ids = [item for item in given if isinstance(item, int)]
    if len(ids) == len(given):
        return [ids]
    several = [item for item in given if not isinstance(item, int)]
    if len(several) != len(given) or len({type(item) for item in several}) > 1:
        raise invalid(f"{field} mixes texts, token ids and lists of them.", field, "invalid_type")
    return several


def check_not_empty(listed: Sequence[str | list[int]], field: str) -> None:
    """Raises ApiError for an empty text, which has no vector."""
    if "" in listed:
        raise invalid(f"{field} must not be an empty text.", field)


def check_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Raises ApiError for an id that is no token."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise invalid(f"{field}: token ids must be from 0 to {vocab_size - 1}.", field)


def check_count(count: int, field: str) -> None:
    """Raises ApiError for more entries than a request may have."""
    if count > MAX_ENTRIES:
        raise invalid(f"{field} has {count} entries; at most {MAX_ENTRIES} are taken.", field)


async def read_entries(
    service: Service,
    listed: Sequence[str | list[int]],
    field: str,
    options: EncodingOptions,
    before: str = "",
) -> list[EncodedPrompt]:
    """Returns prompts of texts, each with `before` in front, or of token ids.

    Raises ApiError that names the entry, for one that is empty, too long, or no token.
    """
    check_count(len(listed), field)
    if len(listed) == 1:
        prepare = partial(_prompt, service, options, before, field)
    else:
        prepare = partial(_numbered, service, options, before, field)
    size = sum(map(len, listed)) + ENTRY_WORK * len(listed)
    return await service.beside(size, lambda: _within_limit(prepare, enumerate(listed), field))


async def read_pairs(
    service: Service, pairs: Sequence[TextPair], field: str, options: EncodingOptions
) -> list[EncodedPrompt]:
    """Returns prompts of pairs of texts.  Raises ApiError as `read_entries`."""
    check_count(len(pairs), field)
    size = sum(len(pair.first) + len(pair.second) for pair in pairs) + ENTRY_WORK * len(pairs)
    prepare = partial(_paired, service, options)
    return await service.beside(size, lambda: _within_limit(prepare, pairs, field))


def check_total(tokens: int, field: str) -> None:
    """Raises ApiError for more tokens than a request may have."""
    if tokens > MAX_INPUT_TOKENS:
        message = f"{field} has more than {MAX_INPUT_TOKENS} tokens in all."
        raise invalid(message, field, "context_length_exceeded")


def _within_limit(
    prepare: Callable[[E], EncodedPrompt], listed: Iterable[E], field: str
) -> list[EncodedPrompt]:
    """Encodes the entries until they have too many tokens; the rest is not encoded then."""
    prompts, total = [], 0
    for one in listed:
        prompts.append(prepare(one))
        total += len(prompts[-1].ids)
        check_total(total, field)
    return prompts


def _paired(service: Service, options: EncodingOptions, pair: TextPair) -> EncodedPrompt:
    tokenizer, cut = service.tokenizer, options.cut
    readable = options.most if cut is None and not options.most_second else READABLE
    for text in (pair.first, pair.second):
        check_length(text, pair.field, readable, tokenizer.encode)
    most = None if cut is None else cut.most
    ids, second = tokenizer.pair(
        pair.first, pair.second, options.special, most=most, most_second=options.most_second or None
    )
    if len(ids) > options.most:
        raise too_long(len(ids), options.most, pair.field)
    return EncodedPrompt(ids, second)


def _numbered(
    service: Service, options: EncodingOptions, before: str, field: str, item: tuple[int, str | list[int]]
) -> EncodedPrompt:
    return _prompt(service, options, before, f"{field}[{item[0]}]", item)


def _prompt(
    service: Service, options: EncodingOptions, before: str, field: str, item: tuple[int, str | list[int]]
) -> EncodedPrompt:
    tokenizer, given, cut = service.tokenizer, item[1], options.cut
    if isinstance(given, str):
        readable = options.most if cut is None else cut.readable
        ids = encode_text(
            before + given, field, readable, lambda text: tokenizer.encode(text, options.special)
        )
    else:
        check_ids(given, service.vocab_size, field)
        ids = given
    if not ids:
        raise invalid(f"{field} must not be empty.", field)
    if cut is not None:
        ids = tokenizer.cut(ids, cut.most, cut.side, framed=options.special and isinstance(given, str))
    if len(ids) > options.most:
        raise too_long(len(ids), options.most, field)
    return EncodedPrompt(ids)


def too_long(tokens: int, most: int, field: str) -> ApiError:
    """Returns error 400: an entry has more tokens than the model reads."""
    message = (
        f"This model's maximum context length is {most} tokens. However, {field} has {tokens} tokens; "
        "truncate_prompt_tokens: -1 truncates it."
    )
    return invalid(message, field, "context_length_exceeded")


MAX_IMAGES = 64
"""Images in one request: small files may be large images."""
MAX_STORED = 1 << 26
"""Decoded pixels of all images of a request: 67 million take a second or two."""
SCHEME, BASE64 = "data:", ";base64"
FETCHED = ("http:", "https:", "ftp:", "file:", "s3:", "gs:", "//")


async def read_input(
    service: Service, given: Input, field: str, options: EncodingOptions, before: str = ""
) -> list[EncodedPrompt]:
    """Returns prompts of the contents of a field: images where the model reads images, else texts.

    Raises ApiError, naming the entry at fault.
    """
    listed = entries(given, field)
    if service.task.images is None:
        return await read_entries(service, listed, field, options, before)
    return await read_images(service, service.task.images, listed, field)


async def read_images(
    service: Service, images: Images, listed: Sequence[str | list[int]], field: str
) -> list[EncodedPrompt]:
    """Returns prompts of data URIs.  Raises ApiError for what is no image, or cannot be read."""
    if images.preprocessing is None:
        raise _tensors_alone(images)
    if len(listed) > MAX_IMAGES:
        raise invalid(f"{field} has {len(listed)} images; at most {MAX_IMAGES} are taken.", field)
    prompts, left = [], MAX_STORED
    for number, one in enumerate(listed):
        named = field if len(listed) == 1 else f"{field}[{number}]"
        if not isinstance(one, str):
            raise invalid(f"{named}: this model reads images: send data URIs.", named, "invalid_type")
        found = await service.beside(LONG_TEXT, partial(_read, service, one, named))
        prompts.append(of_pixels(images, found.pixels))
        left -= found.stored
        if left < 0:
            raise invalid(f"{field}: the images have more than {MAX_STORED} pixels in all.", field)
    return prompts


def of_pixels(images: Images, pixels: bytes) -> EncodedPrompt:
    """Returns the prompt of an image: its pixels, as the model reads them."""
    return EncodedPrompt([0] * images.rows, image=pixels)


def _read(service: Service, text: str, field: str) -> DecodedImage:
    try:
        return service.images.read(_decoded(text, field))
    except UserError as error:
        raise invalid(f"{field}: the image is refused: {error.message}.", field) from None


def _decoded(uri: str, field: str) -> bytes:
    """Returns the bytes of a data URI.  Raises ApiError."""
    if uri.lower().startswith(FETCHED):
        message = f"{field}: nothing is fetched here; send the image itself as a data URI."
        raise invalid(message, field)
    head, comma, data = uri.partition(",")
    if not (head.startswith(SCHEME) and comma):
        message = f"{field}: this model reads images: send a data URI, data:image/png;base64,..."
        raise invalid(message, field)
    if not (head.startswith("data:image/") and head.endswith(BASE64)):
        raise invalid(f"{field}: a data URI must begin with data:image/ and be in base64.", field)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{field}: the data URI is no valid base64.", field) from None


def _tensors_alone(images: Images) -> ApiError:
    channels = images.shape[0]
    why = f"has no {FILE}" if channels == COLOURS else f"reads {channels} channels"
    message = f"The model {why}: send pixel_values to /v2/models/{{model}}/infer."
    return invalid(message, "input", "unsupported_value")
