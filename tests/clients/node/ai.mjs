// ai (the AI SDK) over @ai-sdk/openai-compatible: generateText, streamText, generateObject, tools.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateObject, generateText, isStepCount, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { ASK_WEATHER, KEY, MODEL, QUESTION, URL, assert, refused, row, runAll } from "./rows.mjs";

const provider = createOpenAICompatible({
  name: "corepipe",
  baseURL: URL,
  apiKey: KEY,
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const model = provider(MODEL);
const PLAIN = { model, prompt: QUESTION, temperature: 0, maxOutputTokens: 16, maxRetries: 0 };
const FORCED = { ...PLAIN, maxOutputTokens: 256 };

const City = z.object({ name: z.string().max(20), country: z.enum(["France", "Italy"]) });
const Weather = z.object({ city: z.string().max(20), unit: z.enum(["celsius", "fahrenheit"]) });
const weather = (asked) =>
  tool({
    description: "The weather of a city.",
    inputSchema: Weather,
    execute: async (wanted) => {
      asked.push(wanted);
      return "18 degrees, sunny";
    },
  });

row("generateText: text and usage", async () => {
  const answer = await generateText(PLAIN);
  assert.match(answer.text, /Paris/);
  assert.ok(answer.usage.outputTokens > 0);
});

row("streamText: the text of generateText, with usage", async () => {
  const stream = streamText(PLAIN);
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, (await generateText(PLAIN)).text);
  assert.ok((await stream.usage).outputTokens > 0);
});

row("generateText with system and messages", async () => {
  const { prompt: _, ...rest } = PLAIN;
  const messages = [
    { role: "user", content: QUESTION },
    { role: "assistant", content: "Paris." },
    { role: "user", content: [{ type: "text", text: "And of Italy?" }] },
  ];
  assert.ok((await generateText({ ...rest, instructions: "You are brief.", messages })).text);
});

row("generateObject: response_format json_schema", async () => {
  const { object } = await generateObject({ ...FORCED, schema: City });
  City.parse(object);
});

row("generateObject with an enum", async () => {
  const { object } = await generateObject({ ...FORCED, output: "enum", enum: ["red", "green"] });
  assert.ok(["red", "green"].includes(object));
});

row("streamObject: partial objects, the last one whole", async () => {
  const stream = streamObject({ ...FORCED, schema: City });
  const seen = [];
  for await (const part of stream.partialObjectStream) seen.push(part);
  City.parse(seen.at(-1));
  City.parse(await stream.object);
});

row("generateText with Output.object", async () => {
  City.parse((await generateText({ ...FORCED, output: Output.object({ schema: City }) })).output);
});

row("generateText with tools, toolChoice required: executed once", async () => {
  const asked = [];
  const tools = { get_weather: weather(asked) };
  const answer = await generateText({ ...FORCED, prompt: ASK_WEATHER, tools, toolChoice: "required" });
  assert.equal(answer.finishReason, "tool-calls");
  assert.ok(asked.length > 0);
  Weather.parse(asked[0]);
});

row("generateText with a named tool", async () => {
  const asked = [];
  const toolChoice = { type: "tool", toolName: "get_weather" };
  await generateText({ ...FORCED, prompt: ASK_WEATHER, tools: { get_weather: weather(asked) }, toolChoice });
  assert.ok(asked.length > 0);
});

row("streamText with tools: the input of generateText's call", async () => {
  const asked = [];
  const call = { ...FORCED, prompt: ASK_WEATHER, tools: { get_weather: weather(asked) }, toolChoice: "required" };
  const stream = streamText(call);
  const kinds = [];
  for await (const part of stream.fullStream) kinds.push(part.type);
  assert.ok(kinds.includes("tool-call") && kinds.includes("tool-result"), kinds.join(" "));
  const streamed = asked[0];
  await generateText(call);
  assert.deepEqual(streamed, asked.at(-1));
});

row("several steps: call, result, answer", async () => {
  const asked = [];
  const answer = await generateText({
    ...FORCED,
    maxOutputTokens: 96,
    prompt: ASK_WEATHER,
    tools: { get_weather: weather(asked) },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    stopWhen: isStepCount(2),
  });
  assert.equal(answer.steps.length, 2);
  assert.ok(answer.text);
});

row("toolChoice auto: text or calls", async () => {
  const asked = [];
  const answer = await generateText({ ...PLAIN, prompt: ASK_WEATHER, tools: { get_weather: weather(asked) } });
  assert.ok(answer.text || asked.length);
});

row("an abort ends a stream; the next request is answered", async () => {
  const controller = new AbortController();
  const stream = streamText({ ...PLAIN, maxOutputTokens: 1000, abortSignal: controller.signal });
  for await (const part of stream.fullStream) {
    if (part.type === "text-delta") controller.abort();
  }
  assert.ok((await generateText(PLAIN)).text);
});

refused("temperature", "it is beyond 2", "what is refused is an APICallError with the field", async () => {
  await generateText({ ...PLAIN, temperature: 9 });
});

await runAll();
