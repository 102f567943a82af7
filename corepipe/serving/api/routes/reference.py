"""Writes docs/api.md from the tables of the endpoints, so that the page and the code cannot differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from corepipe.serving.api.bodies.client_settings import SETTINGS
from corepipe.serving.api.bodies.protocol import NESTED, Nested, Neutral
from corepipe.serving.api.routes.route import Audience, Route
from corepipe.serving.api.routes.table import ROUTES

_INTRO = """\
# HTTP API

<!-- Written by `python -m corepipe.serving.api.routes.reference`; a test compares. -->

The server implements the OpenAI API. A parameter is in one of four lists: it is **honoured**; or it is
accepted because the value sent **asks for nothing**; or it is one of the
[settings](#settings-that-clients-send) that change no answer, and is accepted without effect and **named** in
the answer's header `x-corepipe-ignored`; or it is **refused by name** with status 400 and code
`unsupported_parameter`. With `--strict` the third list is refused, too. Null means the default everywhere. If
a JSON object repeats a name, the last one counts.

## Routes

@ROUTES@

With `--admin-port` the routes @ADMIN@ are only on that
port, beside the probes; it has keys of its own (`--admin-api-key`). With `--metrics-port` a further port has
`/metrics` and the probes only, and needs no key; the other ports keep these routes. It is for scrapers that
cannot send a key, such as the endpoint pickers of [gateways](gateways.md): let no other clients reach it.

With API keys set (`Authorization: Bearer KEY`, or `x-api-key: KEY`; both only if they are the same) every
route needs one, except @KEYLESS@. Without keys the server listens on a loopback address only and answers only
to loopback names in `Host`. Web pages are served if their origin is allowed: [connections](connections.md).

## Keys and their limits

A key is set as plain text or as `sha256:` and the 64 hex digits of its SHA-256 (`printf %s KEY | sha256sum`),
by `--api-key`, `COREPIPE_API_KEY` or `--api-key-file` (one entry a line; refused if everyone may read the
file; SIGHUP reloads it). The server keeps only digests. Requests with one key never find prefix-cache entries
of another.

`--max-requests-per-key` limits the sequences (prompts times `n`) that a key has in flight, and
`--max-tokens-per-minute-per-key` the tokens it uses. Tokens are a bucket that holds a minute's worth and
refills evenly: a prompt is charged when it is submitted, an answer when it ends. The bucket's level may then
become negative, and requests are refused until it is positive. Beyond a limit the answer is 429 with
`Retry-After`. Headers of answers to POST report the remaining amounts: `x-ratelimit-limit-requests`,
`x-ratelimit-remaining-requests`, `x-ratelimit-limit-tokens`, `x-ratelimit-remaining-tokens`,
`x-ratelimit-reset-tokens`. With keys, `priority` must be 0 or more, so that no client takes precedence over
others. Keys whose requests wait [take turns](decisions/2026-11-21-turns.md), and one key alone fills half of
the queue.

## Emulated device times

`"device_metrics": true` in the body, or the header `x-corepipe-device: 1`, adds to a plain answer and to a
stream's last chunk the times that the emulated device would have taken, in milliseconds, and the time when
the request came, in seconds since the device's start:

```json
"corepipe": {"device": "inf2.xlarge", "emulated": true, "valid": true, "time_scale_needed": null,
             "arrived_at_s": 3.25, "time_to_first_token_ms": 12.5, "time_per_output_token_ms": 2.5}
```

Where the host cannot keep the device's pace, `valid` is false, and `time_scale_needed` is the
`--time-scale` with which it would ([pacing](pacing.md#a-host-that-is-too-slow)). All three times are null
if the answer ended at a stop string before the device's times were known. Over several choices they are the
earliest arrival, the earliest first token and the mean time per token.

With [speculative decoding](speculation.md) it also has `speculative_decoding`, with vLLM's figures of a
request: `mean_acceptance_length`, `draft_acceptance_rate`, `acceptance_histogram` (steps by how many draft
tokens were accepted, from none on) and `num_spec_steps`, over all choices; `assumed` is true if the
acceptance rate was given to the server instead of measured. An answer whose engine was lost and replaced has
none.

## Tokens beside the text

The names, forms and places are vLLM's; a stream has the same fields as a plain answer.

- `return_token_ids` adds to each choice its tokens as `token_ids`, including those whose text is not shown:
  the end token, and the tokens of a stop string. In a stream they are those since the last chunk. It also
  adds `prompt_token_ids`: to each choice of a completion, in a stream to the choice's first chunk; once to a
  chat, in a stream to the first chunk of all.
- `prompt_logprobs` adds a field of that name in the same place as `prompt_token_ids`. For each token of the
  prompt it has an object `{"TOKEN ID": {"logprob", "rank", "decoded_token"}}` of the prompt's own token and
  of that many likeliest tokens; null for the first token, which has no prediction.
- `return_tokens_as_token_ids` puts `token_id:N` in place of a token's text into `logprobs`; `bytes` and
  `text_offset` stay those of the text.
- `stream_options.continuous_usage_stats` adds to every chunk the `usage` of its choice so far; the last chunk
  has that of all choices.

## The prompt of a chat

The chat template renders the messages, and the prompt ends where the assistant begins to speak.
`"add_generation_prompt": false` leaves that beginning out. `"continue_final_message": true` ends the prompt
within the last message, whatever its role, and the model continues it, as `apply_chat_template` of
transformers does. The two cannot both be true. With `echo` the answer begins with the
last message, if that is the assistant's.

The template gets contents in the form that it reads. The server finds that form at its start for each role: a
text, a list of parts, or a list of one part. Parts stay separate if the template reads several; otherwise
they become the lines of one text. A template that renders nothing of a user's message is refused.

`chat_template_kwargs` are variables for the template (`{"enable_thinking": false}`): up to 64, with up to
4,096 values in them, up to 16 levels deep. Their texts are encoded as text, like messages. Names that every
template has (`messages`, `tools`, `bos_token`, ...) are refused. `documents` are for templates that name
them, and are refused otherwise. `chat_template` renders in place of the model's template, in the same
sandbox, on servers with `--trust-request-chat-template`; special tokens that this template writes are encoded
as tokens.

`/tokenize` accepts the same fields, to check a prompt before it is sent. The `render` routes accept the whole
bodies of the routes whose paths they extend, refuse the same requests, and answer with the request that the
engine would get, in the form of vLLM's `GenerateRequest`: `token_ids`, and `sampling_params` under the names
of the body. Grammars are not shown, and a key is not charged.

## Rules

- A body may leave out `model` if the server has one model, unless the server is `--strict`.
- Prompt and `max_tokens` must fit the context together; otherwise 400, code `context_length_exceeded`. -1
  means as many tokens as fit.
- Where two fields mean the same: `max_completion_tokens` takes precedence over `max_tokens`; `best_of` must
  equal `n`; device times are added if the body or the header asks for them; `/tokenize` takes `prompt` or
  `messages`, not both.
- Prompts times `n` is at most 128.
- Where an integer is expected, `8.0` and `1e1` are accepted, too. NaN and Infinity are refused.
  A byte order mark may precede a body.
- `truncate_prompt_tokens` keeps that many tokens of each prompt: its end, or its beginning if
  `truncation_side` is `right`; the special tokens around a text are kept. -1 keeps as many as leave room for
  `max_tokens` (or for one token, in a chat without `max_tokens`). Text of more than 131,072 tokens is
  refused.
- `bad_words` are token sequences, as in vLLM: a word as it is encoded at a text's beginning and, if that
  has as many tokens, after a space. Its last token is banned when the answer ends with the tokens before it.
  The same text in other tokens is not recognised.
- `bad_words` and `min_tokens` must leave some of `allowed_token_ids`. If none of them can continue a
  constrained answer, it ends with an error.
- `suffix` is for tokenizers with fill-in-the-middle tokens: `<|fim_prefix|>`, `<|fim_suffix|>` and
  `<|fim_middle|>`, or those of StarCoder, SantaCoder or DeepSeek; elsewhere it is refused. It needs a prompt
  of text, and cannot be combined with `truncate_prompt_tokens`; `echo` then repeats the prompt without the
  suffix, and without `logprobs`.
- `request_id` becomes the end of the answer's `id`. The header `X-Request-Id` is a separate name, for the
  exchange; the answer repeats it. Neither needs to be unique.
- `prediction` makes an answer faster that contains much of the predicted text, and changes no answer: several
  of its tokens are computed in one step, and are kept if the model samples the same
  ([speculation](speculation.md)). `usage` then has `completion_tokens_details`: the numbers of predicted
  tokens that are in the answer, and that are not.
- `"speculation": false` switches speculative decoding off for this answer, whatever the server's flags. The
  answer is the same, but is computed one token per step; a `prediction` beside it is refused.
- The contents of chat messages are text: special tokens written in them, such as `<|im_end|>`, are encoded as
  text. The same holds for other tokens that the chat template writes or that are named `<|...|>`, unless the
  server has `--allow-special-tokens-in-text`. Special tokens in the prompt of a completion are tokens.
  `/tokenize` encodes `messages` and `prompt` like the routes that have these fields.
- The message of an answer may be sent back unchanged, whole or joined from a stream, also as the openai
  package writes it (`parsed`, `index`, nulls): an assistant's `content` may be null or empty or missing.
- Roles need not alternate: if a chat template refuses two messages of one role in a row, they are joined,
  with an empty line in between.
- One of `response_format`, `structured_outputs` and `guided_...` constrains the form of an answer:
  [structured output](structured-output.md) lists which parts of schemas are honoured or refused.
- A choice that ends at a stop string or at one of `stop_token_ids` names it in `stop_reason`.
- Token ids are row numbers of the model's vocabulary. If the tokenizer has no text for one, its text is
  empty.
- If the client closes the connection, its requests are aborted at once.

Vectors, scores and classes of texts ([embeddings](embeddings.md)):

- A route for another task than the served model's answers 400, code `task_not_served`, and names the task,
  its routes and `--task`.
- A request has up to 2,048 texts and 300,000 tokens; at most 256 of its texts are in the engine at a time.
- Images ([their page](images.md)) come as data URIs, up to 64 a request, or as tensors; nothing is fetched.
- A text that is longer than the model reads is refused; `truncate_prompt_tokens` cuts it (-1: to what fits),
  at its end unless `truncation_side` is `left`. In a pair, the longer text is cut first, at its end.
  `max_tokens_per_doc` cuts documents before that.
- `prompt_name` names one of the model's prompts, `input_type` (`query`, `document`, ...) selects the prompt
  for such texts. Without them, the model's default prompt goes before a text, if it has one; never before
  token ids.
- `dimensions` is for models that are trained for it; the kept part is normalised again if vectors have
  length 1.
- For `/score` and the rerank routes a cross-encoder reads pairs. An embedding model compares the vectors of
  the two texts (cosine), with its prompts for queries and documents if it has them.
- Answers of `/v2` have the form of the Open Inference Protocol, errors too: `{"error": "..."}`; its
  extensions (repository, configuration, statistics, ...) are not supported, and the error says so.

## Errors

Every failure is `{"error": {"message", "type", "param", "code"}}`; `param` names the field at fault. Under
`/v2`, except Cohere's routes, it is the Open Inference Protocol's `{"error": "..."}`, and under
`/v1/messages` Anthropic's `{"type": "error", "error": {"type", "message"}}`, for every failure. If no route
matches (404), the message names the one that was probably meant and the base URL for clients, as `GET /`
does.

| status | code | when |
|---|---|---|
| 400 | `invalid_json`, `invalid_type`, `invalid_value` | the body is not valid |
| 400 | `missing_required_parameter` | a required field is missing |
| 400 | `unsupported_parameter`, `unsupported_value` | the server does not support it |
| 400 | `request_too_complex` | the body holds too many strings, arrays, objects or values |
| 400 | `context_length_exceeded` | prompt and answer do not fit, or a text is longer than the model reads |
| 400 | `task_not_served` | the model is served for another task |
| 401 | `missing_api_key`, `invalid_api_key` | no key, or not one of the server's |
| 403 | `origin_not_allowed` | a web page of an origin that is not allowed |
| 404 | `model_not_found`, `not_found` | the model or the route does not exist |
| 404 | `not_recorded` | [`--replay`](testing-llm-apps.md): no answer is recorded for this request |
| 405 | `method_not_allowed` | the route does not have this method |
| 400 | `invalid_http` | the request is not valid HTTP/1.1: [connections](connections.md) |
| 408, 413 | `request_timeout`, `request_too_large` | head or body came too late; the body is too big |
| 414, 431 | `uri_too_long`, `headers_too_large` | the head is too big |
| 417 | `expectation_failed` | an `Expect` other than `100-continue` |
| 415 | `unsupported_media_type` | the body is not JSON, or is compressed |
| 421 | `misdirected_request` | `Host` names another host |
| 429 | `rate_limit_exceeded` | a full queue, or a key's limit; `Retry-After` says when to try again |
| 500 | `logits_overflow` | the model computed infinity or NaN: its weights do not fit the number format |
| 400 | `constraint_failed` | the answer's grammar allows none of `allowed_token_ids` at some point |
| 500 | `constraint_failed` | no next token fits the grammar, or the grammar reached a limit |
| 500 | `internal_error` | an error in the server; its log has the reason |
| 503 | `service_unavailable` | the engine is loading or lost; the server is ending; too many connections |
| 504 | `queue_timeout` | the request waited longer than `--max-queue-seconds` |

A stream that fails after its first token ends with an event that holds the error, without `[DONE]`.
"""


_SETTINGS = """\
## Settings that clients send

Graphical clients, frameworks and agents send settings of other servers that their users cannot leave out.
Each is honoured, or changes no answer and is accepted without effect: the header `x-corepipe-ignored` of the
answer, streamed or not, lists these with their paths (`store, messages[].content[].cache_control`). Any other
value is refused. A server with `--strict` refuses them all, and a body without its `model`, with 400 and the
field's name.
"""


def reference() -> str:
    """Returns the whole page."""
    admin = [one for one in ROUTES if one.audience in (Audience.WATCHERS, Audience.OPERATORS)]
    intro = _INTRO.replace("@ROUTES@", "\n".join(_table()))
    intro = intro.replace("@ADMIN@", _listed(admin))
    intro = intro.replace("@KEYLESS@", _listed([one for one in ROUTES if one.keyless]))
    return "\n".join([intro, *_sections()])


def _table() -> Iterator[str]:
    yield "| route | what |"
    yield "|---|---|"
    for one in ROUTES:
        what = f"{one.summary}: {one.details}" if one.details else one.summary
        yield f"| `{one.method} {one.path}` | {what} |"


def _listed(routes: Sequence[Route]) -> str:
    names = [f"`{one.path}`" for one in routes]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _sections() -> Iterator[str]:
    alike: dict[type[msgspec.Struct], list[Route]] = {}
    for one in ROUTES:
        if one.request is not None:
            alike.setdefault(one.request, []).append(one)
    for request, routes in alike.items():
        paths = ", ".join(one.path for one in routes)
        yield from _section(f"{routes[0].method} {paths}", request, routes[0].neutral)
    yield from _nested_sections(NESTED)
    yield from _settings()


def _settings() -> Iterator[str]:
    """Yields the table of settings that clients of other servers send."""
    yield _SETTINGS
    yield "| setting | values | in | effect | sent by |"
    yield "|---|---|---|---|---|"
    for one in SETTINGS:
        names = ", ".join(f"`{name}`" for name in one.fields)
        places = ", ".join(place.in_words for place in one.places)
        fate = (
            "honoured: " if one.read_as and not one.by_template else "no effect: " if not one.read_as else ""
        )
        yield f"| {names} | {_taken(one.takes)} | {places} | {fate}{one.why} | {one.clients} |"
    yield ""


def _nested_sections(nested: Mapping[str, Nested], prefix: str = "") -> Iterator[str]:
    for name, inner in nested.items():
        yield from _section(prefix + name, inner.request, inner.neutral)
        yield from _nested_sections(inner.nested, f"{prefix}{name}.")


def _section(title: str, request: type[msgspec.Struct], neutral: Mapping[str, Neutral]) -> Iterator[str]:
    yield f"## Parameters: {title}\n"
    yield "| honoured | values | default | |"
    yield "|---|---|---|---|"
    schema = msgspec.json.schema(request)["$defs"][request.__name__]
    for name, field in schema["properties"].items():
        default = "required" if name in schema["required"] else f"`{_json(field.get('default'))}`"
        yield f"| `{name}` | {_values(field)} | {default} | {field.get('description', '')} |"
    if neutral:
        yield "\n| asks for nothing | accepted besides null |"
        yield "|---|---|"
        for name, accepted in neutral.items():
            yield f"| `{name}` | {_accepted(accepted)} |"
    yield ""


def _taken(neutral: Neutral) -> str:
    """Returns the accepted values in words; the fields of an object are not listed."""
    if neutral.type is None:
        return _accepted(neutral)
    schema = msgspec.json.schema(neutral.type)
    return "an object" if schema.get("type") == "object" else _values(schema)


def _accepted(neutral: Neutral) -> str:
    if neutral.type is not None:
        return _values(msgspec.json.schema(neutral.type))
    return ", ".join(f"`{_json(value)}`" for value in neutral.values) or "nothing"


def _values(field: Mapping[str, Any]) -> str:
    """Returns a JSON schema in a few words."""
    if "anyOf" in field:
        return " or ".join(_values(one) for one in field["anyOf"] if one.get("type") != "null")
    if "$ref" in field:
        return "object"
    if "enum" in field:
        return " or ".join(f"`{_json(one)}`" for one in field["enum"] if one is not None)
    kind = "list" if field["type"] == "array" else str(field["type"])
    if kind == "list" and field.get("items"):
        kind = f"list of ({_values(field['items'])})"
    if isinstance(field.get("additionalProperties"), dict):
        kind = f"object of ({_values(field['additionalProperties'])})"
    return kind + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    words = {
        "minimum": "≥ {}",
        "exclusiveMinimum": "> {}",
        "maximum": "≤ {}",
        "maxLength": "up to {} characters",
        "maxItems": "up to {}",
        "maxProperties": "up to {}",
    }
    said = [text.format(field[key]) for key, text in words.items() if key in field]
    return " " + ", ".join(said) if said else ""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201
