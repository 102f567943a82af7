// openai, the npm package: create, streams, runTools, zodResponseFormat, errors.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ASK_WEATHER, KEY, MODEL, QUESTION, URL, assert, refused, row, runAll } from "./rows.mjs";

const client = new OpenAI({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const PLAIN = { model: MODEL, messages: [{ role: "user", content: QUESTION }], temperature: 0, max_tokens: 16 };
const FORCED = { ...PLAIN, max_tokens: 256 };
const ASK = [{ role: "user", content: ASK_WEATHER }];

const City = z.object({ name: z.string().max(20), country: z.enum(["France", "Italy"]) });
const Place = z.object({
  city: City,
  size: z.enum(["small", "large"]),
  founded: z.iso.date(),
  visitors: z.number().int().min(0).max(9999),
  note: z.string().max(12).nullable(),
  tags: z.array(z.enum(["old", "new"])).max(3),
});
const Weather = z.object({ city: z.string().max(20), unit: z.enum(["celsius", "fahrenheit"]) });
const weather = zodFunction({ name: "get_weather", description: "The weather of a city.", parameters: Weather });

row("chat.completions.create", async () => {
  const answer = await client.chat.completions.create(PLAIN);
  assert.match(answer.choices[0].message.content, /Paris/);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

row("create with stream: the text of the plain answer", async () => {
  const stream = await client.chat.completions.create({ ...PLAIN, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, (await client.chat.completions.create(PLAIN)).choices[0].message.content);
});

row("chat.completions.stream: events and finalChatCompletion", async () => {
  const stream = client.chat.completions.stream(PLAIN);
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
});

row("withResponse: headers and request id", async () => {
  const { data, response, request_id } = await client.chat.completions.create(PLAIN).withResponse();
  assert.equal(response.status, 200);
  assert.equal(request_id, response.headers.get("x-request-id"));
  assert.equal(data._request_id, request_id);
});

row("models.list", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.ok(ids.includes(MODEL));
});

row("an abort ends a stream; the next request is answered", async () => {
  const stream = await client.chat.completions.create({ ...PLAIN, max_tokens: 1000, stream: true });
  for await (const _ of stream) break;
  assert.ok((await client.chat.completions.create(PLAIN)).choices);
});

row("errors are the SDK's classes, with param and code", async () => {
  for (const [change, kind, param] of [
    [{ temperature: 9 }, OpenAI.BadRequestError, "temperature"],
    [{ model: "another" }, OpenAI.NotFoundError, "model"],
    [{ no_such_field: 1 }, OpenAI.BadRequestError, "no_such_field"],
  ]) {
    const error = await client.chat.completions.create({ ...PLAIN, ...change }).catch((caught) => caught);
    assert.ok(error instanceof kind, String(error));
    assert.equal(error.param, param);
    assert.ok(error.requestID);
  }
});

row("a timeout ends in APIConnectionTimeoutError", async () => {
  const long = { ...PLAIN, max_tokens: 2000, ignore_eos: true };
  const error = await client.chat.completions.create(long, { timeout: 50 }).catch((caught) => caught);
  assert.ok(error instanceof OpenAI.APIConnectionTimeoutError, String(error));
});

row("parse with zodResponseFormat", async () => {
  for (const [shape, name] of [[City, "city"], [Place, "place"]]) {
    const answer = await client.chat.completions.parse({ ...FORCED, response_format: zodResponseFormat(shape, name) });
    assert.ok(shape.safeParse(answer.choices[0].message.parsed).success, answer.choices[0].message.content);
  }
});

row("stream with zodResponseFormat: the parsed answer of parse", async () => {
  const asked = { ...FORCED, response_format: zodResponseFormat(City, "city") };
  const final = await client.chat.completions.stream(asked).finalChatCompletion();
  const plain = await client.chat.completions.parse(asked);
  assert.deepEqual(final.choices[0].message.parsed, plain.choices[0].message.parsed);
});

row("create with tools, tool_choice required: a call that parses", async () => {
  const asked = { ...FORCED, messages: ASK, tools: [weather], tool_choice: "required", parallel_tool_calls: false };
  const [choice] = (await client.chat.completions.create(asked)).choices;
  assert.equal(choice.finish_reason, "tool_calls");
  Weather.parse(JSON.parse(choice.message.tool_calls[0].function.arguments));
});

row("parse with zodFunction: parsed_arguments", async () => {
  const named = { type: "function", function: { name: "get_weather" } };
  const asked = { ...FORCED, messages: ASK, tools: [weather], tool_choice: named };
  const [call] = (await client.chat.completions.parse(asked)).choices[0].message.tool_calls;
  Weather.parse(call.function.parsed_arguments);
});

row("runTools: call, tool message, answer", async () => {
  const asked = [];
  const runner = client.chat.completions.runTools({
    ...FORCED,
    max_tokens: 64,
    messages: ASK,
    tool_choice: { type: "function", function: { name: "get_weather" } },
    tools: [
      zodFunction({
        name: "get_weather",
        parameters: Weather,
        function: (wanted) => {
          asked.push(wanted);
          return "18 degrees, sunny";
        },
      }),
    ],
  });
  await runner.done();
  assert.equal(asked.length, 1);
  Weather.parse(asked[0]);
});

row("runTools with tool_choice auto, streamed: it ends with an answer", async () => {
  const tool = zodFunction({ name: "get_weather", parameters: Weather, function: () => "18 degrees, sunny" });
  const asked = { ...FORCED, max_tokens: 64, messages: ASK, tools: [tool], stream: true };
  const runner = client.chat.completions.runTools(asked, { maxChatCompletions: 3 });
  await runner.done();
  assert.ok(runner.messages.length > 1);
});

row("responses.create, plain and streamed", async () => {
  const asked = { model: MODEL, input: QUESTION, temperature: 0, max_output_tokens: 16 };
  let text = "";
  for await (const event of await client.responses.create({ ...asked, stream: true })) text += event.delta ?? "";
  assert.match(text, /Paris/);
  assert.equal(text, (await client.responses.create(asked)).output_text);
});

refused("messages", "messages are text; no model here sees images", "an image_url part", async () => {
  const part = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
  await client.chat.completions.create({ ...PLAIN, messages: [{ role: "user", content: [part] }] });
});

await runAll();
