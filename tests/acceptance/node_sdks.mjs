// Makes a call of each kind with OpenAI's and Anthropic's SDKs for Node, and prints what came.
// Usage: node node_sdks.mjs NODE_MODULES URL KEY
import { createRequire } from "node:module";
const [modules, url, key] = process.argv.slice(2);
const require = createRequire(modules + "/");
const OpenAI = require("openai");
const Anthropic = require("@anthropic-ai/sdk");
const messages = [{ role: "user", content: "Hello there" }];
const openai = new OpenAI({ baseURL: url + "/v1", apiKey: key, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const said = [];
const chat = await openai.chat.completions.create({ model: "tiny", messages, max_tokens: 5 });
said.push(["chat", chat.usage.completion_tokens]);
let n = 0;
for await (const chunk of await openai.chat.completions.create({ model: "tiny", messages, max_tokens: 5, stream: true, stream_options: { include_usage: true } })) n = chunk.usage?.completion_tokens ?? n;
said.push(["chat stream", n]);
const response = await openai.responses.create({ model: "tiny", input: "Hello", max_output_tokens: 5 });
said.push(["response", response.usage.output_tokens]);
const vectors = await openai.embeddings.create({ model: "tiny", input: ["a", "b"] });
said.push(["embeddings", vectors.data.length]);
const message = await anthropic.messages.create({ model: "tiny", messages, max_tokens: 5 });
said.push(["message", message.usage.output_tokens]);
const streamed = await anthropic.messages.stream({ model: "tiny", messages, max_tokens: 5 }).finalMessage();
said.push(["message stream", streamed.usage.output_tokens]);
const counted = await anthropic.messages.countTokens({ model: "tiny", messages });
said.push(["count", counted.input_tokens]);
for (const [name, call] of [["openai", () => openai.chat.completions.create({ model: "another", messages })], ["anthropic", () => anthropic.messages.create({ model: "another", messages, max_tokens: 5 })]])
  try { await call(); } catch (error) { said.push([name, error.status, error.constructor.name]); }
console.log(JSON.stringify(said));
