// What is tried of a client of Node, row by row, as tests/clients/rows.py does: lines of JSON on stdout.
import assert from "node:assert/strict";

export const URL = process.env.CLIENTS_URL;
export const MODEL = process.env.CLIENTS_MODEL;
export const KEY = "none";
export const QUESTION = "What is the capital of France?";
export const ASK_WEATHER = "What is the weather in Paris, in celsius?";

const rows = [];

export function row(title, run) {
  rows.push({ title, run });
}

// A row that ends in a 400 which names `field`, because of `why`.
export function refused(field, why, title, run) {
  rows.push({ title, run, field, why });
}

export async function runAll() {
  const chosen = process.env.CLIENTS_ROWS ?? "";
  for (const one of rows.filter(({ title }) => title.includes(chosen))) {
    const [outcome, why] = await ended(one);
    console.log(JSON.stringify({ row: one.title, outcome, why }));
  }
}

async function ended({ run, field, why }) {
  try {
    await run();
  } catch (error) {
    if (field && names(error, field)) return ["explained", `\`${field}\` is refused: ${why}`];
    const at = /\w+\.mjs:\d+/.exec((error.stack ?? "").split("build/clients/").slice(1).join(" "))?.[0];
    return ["failed", `${error.name}: ${String(error.message).replace(/\s+/g, " ").slice(0, 600)} (${at ?? ""})`];
  }
  return field ? ["failed", `\`${field}\` was to be refused, and was not`] : ["passed", ""];
}

// Whether an error, or one that it stands for, is a 400 of the server that names the field.
function names(error, field) {
  for (let one = error; one; one = one.cause ?? one.lastError) {
    const told = one.param ?? one.data?.error?.param ?? JSON.stringify(one.responseBody ?? "");
    if ((one.status ?? one.statusCode) === 400 && String(told).includes(field)) return true;
  }
  return false;
}

export { assert };
