// OpenAI's SDK for Node: whole answers, streams, errors. Run with an endpoint and a model.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [endpoint, model, modules] = process.argv.slice(2);
const { OpenAI } = createRequire(`${modules}/`)("openai");
const client = new OpenAI({ baseURL: `${endpoint}/v1`, apiKey: "none", maxRetries: 0 });
const asked = {
  model,
  messages: [{ role: "user", content: "Who mends the road?" }],
  max_tokens: 12,
  temperature: 0,
};

const whole = await client.chat.completions.create(asked);
const text = whole.choices[0].message.content;
assert.ok(text);

let streamed = "";
const usage = { include_usage: true };
const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: usage });
let last;
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  last = chunk;
}
assert.equal(streamed, text);
assert.deepEqual(last.usage, whole.usage);

const runner = client.chat.completions.stream(asked);
assert.equal(await runner.finalContent(), text);

await assert.rejects(
  client.chat.completions.create({ ...asked, model: "no-such-model" }),
  OpenAI.NotFoundError,
);
