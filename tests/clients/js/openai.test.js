// The `openai` package for JavaScript against a server whose address is in LILY_URL.

import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.LILY_URL}/v1`, apiKey: process.env.LILY_KEY, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const plain = { model, max_tokens: 40, temperature: 0, chat_template_kwargs: { enable_thinking: false } };

test("chat, whole and streamed", async () => {
  const whole = await client.chat.completions.create({ ...plain, messages });
  const text = whole.choices[0].message.content;
  assert.ok(text.length > 0);
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...plain, messages, stream: true })) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(streamed, text);
});

test("a tool is called", async () => {
  const tools = [{
    type: "function",
    function: {
      name: "add",
      parameters: {
        type: "object",
        properties: { a: { type: "integer", minimum: 0, maximum: 9 }, b: { type: "integer", minimum: 0, maximum: 9 } },
        required: ["a", "b"],
      },
    },
  }];
  const stream = client.chat.completions.stream({
    ...plain, max_tokens: 200, tools, tool_choice: "required", messages: [{ role: "user", content: "What is 2 + 3?" }],
  });
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert.equal(call.function.name, "add");
  const { a, b } = JSON.parse(call.function.arguments);
  assert.ok(Number.isInteger(a) && Number.isInteger(b));
});

test("structured output", async () => {
  // Room for all the white space that a reply in JSON may have.
  const schema = { type: "object", properties: { name: { enum: ["fox", "cat"] } }, required: ["name"], additionalProperties: false };
  const reply = await client.chat.completions.create({
    ...plain, max_tokens: 100, messages, response_format: { type: "json_schema", json_schema: { name: "animal", schema, strict: true } },
  });
  assert.ok(["fox", "cat"].includes(JSON.parse(reply.choices[0].message.content).name));
});

test("responses, streamed", async () => {
  let text = "";
  let final;
  const stream = await client.responses.create({
    model, input: "Tell me a story.", max_output_tokens: 30, temperature: 0, reasoning: { effort: "none" }, stream: true,
  });
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === "response.completed" || event.type === "response.incomplete") final = event.response;
  }
  assert.equal(final.output[0].content[0].text, text);
});

test("errors name the parameter", async () => {
  await assert.rejects(client.chat.completions.create({ ...plain, messages, temperature: 9 }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.param, "temperature");
    return true;
  });
});
