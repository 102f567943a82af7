"""Shared by the endpoints: from a plan to an answer, streamed or whole.

An endpoint of any dialect consists of three parts, and everything between them is here:

1. Its body: a type (`bodies.reading.Body`) that says all about the fields: those that are honoured, those
   without effect (`neutral`), the objects in it (`nested`).  `endpoint.read_request` reads it, the OpenAPI
   document describes it, and docs/api.md lists it.
2. `plan`: from the body to encoded prompts and how to answer them.  For answers with tokens these are
   `GenerationPlan`s of an `endpoint.Endpoint`; `chat.Chat` shows how messages become one.  For values of a
   model they are `EncodedPrompt`s of a `pooled.PooledEndpoint`.
3. The writer of the answer.  `generation.Generation` follows the sequences and gives their parts (`Text`,
   `Reasoning`, `CallStart`, `Finish`, `TokenUsage`, ...) to a `rendering.Renderer`, which writes them as
   events or as a whole answer; it alone knows the dialect's JSON.  `pooled` gives results to `render`.

An API whose requests are chats in another form needs no plan: `routes.chat_dialect` translates its body into
that of a chat, and its `Renderer` writes the parts in its own JSON.

A route in `table` names the endpoint.  A new dialect needs no other change: quotas, traces, metrics,
aborts, recording and replaying, constraints and errors are the same for all.
"""
