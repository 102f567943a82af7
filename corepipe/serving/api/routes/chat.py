"""POST /v1/chat/completions: the body, the plan and the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from corepipe.answers.chat_variables import MOST
from corepipe.answers.parsing.forcing import answer_grammar, writes_calls
from corepipe.answers.parsing.formats import AnswerFormat
from corepipe.answers.parsing.prompt import (
    TAIL_TOKENS,
    check_callable,
    reading_of,
    reasoning_variables,
    template_input,
    unheard,
    verbosity_variables,
)
from corepipe.answers.parsing.tools import MAX_TOOLS, OfferedTools, Tool, ToolChoice, offered
from corepipe.answers.text_answer import Echo
from corepipe.models.text.chat import TemplateRefusalError
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.serving.api.answering.answers import (
    TokenTexts,
)
from corepipe.serving.api.answering.endpoint import ChoicesEndpoint, ReadRequest
from corepipe.serving.api.answering.generation import GenerationJob, GenerationPlan
from corepipe.serving.api.answering.long_texts import LONG_TEXT
from corepipe.serving.api.answering.rendering import ChoiceShape, ChoicesRenderer, Envelope, Renderer
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.answering.stored import Metadata
from corepipe.serving.api.answering.texts import Truncation
from corepipe.serving.api.bodies.messages import (
    CHAT_OBJECTS,
    MAX_TEMPLATE,
    TemplateInput,
    TemplateMessage,
    joined_messages,
    system_first,
    with_objects,
)
from corepipe.serving.api.bodies.protocol import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    NESTED,
    NEUTRAL_EVERYWHERE,
    NO_LIMIT,
    GenerationRequest,
    Limit,
)
from corepipe.serving.api.bodies.reading import Chosen, Nested
from corepipe.serving.api.bodies.values import Neutral
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.chat_rendering import (
    ChatCompletion,
    ChatRenderer,
    ChatShape,
    UnreasonedRenderer,
)
from corepipe.serving.api.routes.route import EVENTS, generating
from corepipe.serving.api.routes.stored_chats import CHATS, keeper

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

MAX_DOCUMENTS = 1024

AddGenerationPrompt = Annotated[
    bool | None,
    Meta(
        description="end the prompt where the assistant's message begins; default: true, or false with "
        "`continue_final_message`"
    ),
]
ContinueFinalMessage = Annotated[
    bool, Meta(description="end the prompt within the last message, which the model continues")
]
RequestTemplate = Annotated[
    Annotated[str, Meta(max_length=MAX_TEMPLATE)] | None,
    Meta(description="instead of the model's; only with `--trust-request-chat-template`"),
]
TemplateVariables = Annotated[
    Annotated[dict[str, Any], Meta(max_length=MOST)] | None,
    Meta(description="variables for the chat template, such as `enable_thinking`"),
]


NEUTRAL_CHAT: Mapping[str, Neutral] = {
    **{name: one for name, one in NEUTRAL_EVERYWHERE.items() if name not in ("store", "metadata")},
    "functions": Neutral(([],)),
    "function_call": Neutral(("none", "auto")),
    "modalities": Neutral((["text"],)),
    "audio": Neutral(),
    "moderation": Neutral(),
    "web_search_options": Neutral(),
}


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    neutral: ClassVar[Mapping[str, Neutral]] = NEUTRAL_CHAT
    nested: ClassVar[Mapping[str, Nested | Chosen]] = {**NESTED, **CHAT_OBJECTS}

    messages: Annotated[
        list[dict[str, Any]],
        Meta(
            max_length=MAX_MESSAGES,
            description="roles system, developer (as system), user, assistant, tool; text or parts of it",
        ),
    ]
    max_tokens: Annotated[
        Limit | None, Meta(description="default, or -1: the rest of the context; not 0")
    ] = None
    max_completion_tokens: Annotated[
        Limit | None, Meta(description="takes precedence over `max_tokens`; not 0")
    ] = None
    logprobs: Annotated[bool, Meta(description="report each token's logprob")] = False
    top_logprobs: Annotated[
        int, Meta(ge=0, le=MAX_LOGPROBS, description="alternatives for each token; needs `logprobs`")
    ] = 0

    # Tools and reasoning.
    tools: Annotated[
        Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="functions that the model may call: [tools](tools.md)"),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None,
        Meta(description="none, auto (the default), required, one function, or `allowed_tools`"),
    ] = None
    parallel_tool_calls: Annotated[bool, Meta(description="false: at most one call")] = True
    reasoning_effort: Annotated[
        Effort | None, Meta(description="none: no reasoning; else as the chat template has it")
    ] = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Meta(description="as the chat template has it")
    ] = None
    include_reasoning: Annotated[bool, Meta(description="false: the answer without its reasoning")] = True

    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = False
    add_special_tokens: Annotated[
        bool,
        Meta(
            description="add the special tokens that the tokenizer puts around a text to the rendered prompt"
        ),
    ] = False
    echo: Annotated[bool, Meta(description="begin with the last message, if it is the assistant's")] = False
    documents: Annotated[
        Annotated[list[dict[str, str]], Meta(max_length=MAX_DOCUMENTS)] | None,
        Meta(description="texts by name, for a chat template that has `documents`"),
    ] = None
    chat_template: RequestTemplate = None
    chat_template_kwargs: TemplateVariables = None
    store: Annotated[
        bool, Meta(description="keep the chat: [stored](batches.md#stored-chat-completions)")
    ] = False
    metadata: Metadata = None

    @property
    def most_tokens(self) -> int | None:
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return None if most == NO_LIMIT else most

    def check(self, vocab_size: int, max_num_seqs: int) -> None:
        super().check(vocab_size, max_num_seqs)
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name) == 0:
                raise invalid(f"{name} must be at least 1, or -1 for the rest of the context.", name)
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true.", "top_logprobs")


class Chat(ChoicesEndpoint[ChatRequest]):
    """The endpoint of chat completions."""

    request = ChatRequest
    prefix = "chatcmpl-"
    operation = "chat"

    def shape(self, vocabulary: TokenTexts) -> ChoiceShape:
        return ChatShape(vocabulary)

    def kind(self, body: ChatRequest) -> type[ChoicesRenderer]:
        has_parts = body.tools or body.chat_template is not None or self.service.dialect.reasoning
        if not has_parts:
            return ChoicesRenderer
        return ChatRenderer if body.include_reasoning else UnreasonedRenderer

    async def job(
        self, request: ReadRequest[ChatRequest], envelope: Envelope, renderer: Renderer
    ) -> GenerationJob:
        made, body = await super().job(request, envelope, renderer), request.body
        if not body.store:
            return made
        keep = keeper(request.scope, body.model, envelope.id, body.messages, body.metadata)
        return replace(made, keep=keep, kept_as=self.renderer(body, envelope))

    async def without_effect(self, body: ChatRequest) -> Sequence[str]:
        if body.reasoning_effort is None and body.verbosity is None:
            return ()
        offer = offered(body.tools, body.tool_choice, parallel=body.parallel_tool_calls)
        tokenizer = await _tokenizer(self.service, body.chat_template, offer)
        names = unheard(body.reasoning_effort, body.verbosity, tokenizer.chat_template)
        if names and self.service.strict:
            message = f"{names[0]}: this model's chat template has no such setting; leave it out (--strict)."
            raise invalid(message, names[0])
        return names

    async def plan(self, body: ChatRequest, grammar: str) -> list[GenerationPlan]:
        offer = offered(body.tools, body.tool_choice, parallel=body.parallel_tool_calls)
        conversation = TemplateInput.of(
            body.messages,
            body,
            body.documents or (),
            add_special_tokens=body.add_special_tokens,
            offer=offer,
            effort=body.reasoning_effort,
            verbosity=body.verbosity,
        )
        context = self.service.require_ready().max_model_len
        cut = Truncation.of(body, context, body.most_tokens or 1)
        ids = await encode_chat(self.service, conversation, context if cut is None else cut.readable)
        if cut is not None:
            ids = self.service.tokenizer.cut(ids, cut.most, cut.side, framed=body.add_special_tokens)
        if not ids:
            raise invalid("messages render to an empty prompt.", "messages")
        reading = await self._reading(body, offer, ids)
        said = conversation.last_said if body.echo else ""
        return [
            GenerationPlan(
                prompt=ids,
                source="messages",
                max_tokens=body.most_tokens,
                logprobs=body.top_logprobs if body.logprobs else None,
                prompt_logprobs=body.prompt_logprobs,
                echo=Echo(said) if said else None,
                grammar=await self._answer_grammar(reading, offer, grammar),
                reading=reading,
            )
        ]

    async def _answer_grammar(
        self, reading: AnswerFormat | None, offer: OfferedTools | None, wanted: str
    ) -> str:
        """Returns the grammar of the whole answer: `wanted` after its reasoning, and calls if they are forced
        or strict."""
        tokens, schemas = self.service.tokenizer.added_tokens, {}
        if offer is not None and writes_calls(reading, offer, tokens, wanted):
            for name, where, schema in offer.arguments:
                schemas[name] = await self.service.checked_schema(schema, where)
        return answer_grammar(reading, offer, tokens, wanted, schemas)

    async def _reading(
        self, body: ChatRequest, offer: OfferedTools | None, prompt: list[int]
    ) -> AnswerFormat | None:
        tokenizer = await _tokenizer(self.service, body.chat_template, offer)
        dialect = self.service.dialect_of(tokenizer)
        if offer is None and dialect.reasoning is None:
            return None
        tail = tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special_tokens=False)
        return reading_of(dialect, offer, tail)


async def encode_chat(service: Service, conversation: TemplateInput, most: int) -> list[int]:
    """Encodes the prompt of a chat, up to where the answer begins; its special tokens come from the template
    alone, unless the server allows texts to spell them.

    Raises ApiError, also for more than `most` tokens, and UserError for messages that the template refuses.
    A thread renders, so that a slow template delays no other request.
    """
    tokenizer = await _tokenizer(service, conversation.template, conversation.offer)
    if not tokenizer.has_chat_template:
        message = "This model has no chat template: use /v1/completions."
        raise invalid(message, "messages", "unsupported_value")
    if "documents" in conversation.variables and not tokenizer.template_names("documents"):
        message = "The chat template has no documents: put them into a message."
        raise invalid(message, "documents", "unsupported_value")
    allowed = service.special_tokens_in_text
    render = tokenizer.apply_chat_template if allowed else tokenizer.render_chat
    encode: Callable[[str, bool], list[int]] = tokenizer.encode if allowed else tokenizer.encode_chat
    given = _with_tools(service, tokenizer, conversation)
    text = await service.beside(LONG_TEXT, lambda: _rendered(render, given))
    special = conversation.add_special_tokens
    return await service.encode(text, "messages", most, lambda one: encode(one, special))


async def _tokenizer(service: Service, template: str | None, offer: OfferedTools | None) -> Tokenizer:
    """Returns the tokenizer with the request's `template`, if the server accepts those; without one the
    model's tokenizer, with its template for tools if there are tools."""
    if template is None:
        return service.tokenizer if offer is None else service.tokenizer.with_tools
    templates = service.request_templates
    if templates is None:
        message = "chat_template needs a server with --trust-request-chat-template."
        raise invalid(message, "chat_template", "unsupported_parameter")
    return await service.beside(LONG_TEXT, lambda: templates.tokenizer(template))


def _with_tools(service: Service, tokenizer: Tokenizer, conversation: TemplateInput) -> TemplateInput:
    """Adds the template's variables for tools and reasoning; the request's own variables take precedence."""
    dialect = service.dialect_of(tokenizer)
    check_callable(dialect, conversation.offer)
    turns, tools = template_input(conversation.messages, conversation.offer, dialect)
    effort = reasoning_variables(conversation.effort, tokenizer.chat_template)
    effort |= verbosity_variables(conversation.verbosity, tokenizer.chat_template)
    return replace(conversation, messages=turns, variables={**effort, **conversation.variables, **tools})


def _rendered(render: Callable[..., str], conversation: TemplateInput) -> str:
    """Renders the prompt's text.  If the template refuses the messages, it gets them in other forms with the
    same content: messages of one speaker joined, arguments that are no JSON object wrapped into one, system
    messages at the beginning."""

    def rendered(messages: Sequence[TemplateMessage]) -> str:
        return render(
            messages,
            conversation.add_generation_prompt,
            conversation.continue_final_message,
            **conversation.variables,
        )

    said = conversation.messages
    try:
        return rendered(said)
    except TemplateRefusalError:
        objects = with_objects(said)
        forms = (joined_messages(said), objects, joined_messages(objects))
        for turns in (*forms, joined_messages(system_first(objects))):
            if turns != said:
                with suppress(TemplateRefusalError):
                    return rendered(turns)
        raise


ROUTE = generating(
    CHATS,
    "Chat completion",
    Chat,
    "by the model's chat template",
    request=ChatRequest,
    answer=ChatCompletion,
    others=(EVENTS,),
)
