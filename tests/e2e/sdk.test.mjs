// Client libraries that applications build on, each doing a chat, a stream, an abort and an error:
// Vercel's ai with its OpenAI-compatible provider, and LangChain.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { APICallError, embed, generateText, streamText } from 'ai';
import { Server, platformFetch, until } from './server.mjs';

const KEY = 'alpha-1';
const QUESTION = 'What is the capital of Japan?';
const ANSWER = 'The capital of Japan is Tokyo.';
let server, provider;

before(async () => {
  server = await Server.start(['--api-key', KEY, '--served-model-name', 'demo']);
  provider = createOpenAICompatible({
    name: 'vllm',
    baseURL: `${server.url}/v1`,
    apiKey: KEY,
    includeUsage: true,
  });
});
after(async () => assert.equal(await server.stop(), 0));

const idle = () =>
  until('nothing runs', 2, async () => (await server.metric('vllm:num_requests_running')) === 0);

async function failure(promise) {
  return promise.then(
    () => assert.fail('it was accepted'),
    (reason) => reason,
  );
}

const chat = { prompt: QUESTION, temperature: 0, maxRetries: 0 };

test('ai: a chat answers', async () => {
  const { text, finishReason, usage } = await generateText({ ...chat, model: provider('demo') });
  assert.equal(text, ANSWER);
  assert.equal(finishReason, 'stop');
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
  assert.equal(usage.totalTokens, usage.inputTokens + usage.outputTokens);
});

test('ai: a completion model continues a text', async () => {
  const model = provider.completionModel('demo');
  const { text, finishReason } = await generateText({
    model,
    prompt: 'Once upon a time',
    temperature: 0,
    maxOutputTokens: 8,
    maxRetries: 0,
  });
  assert.ok(text.length > 0);
  assert.equal(finishReason, 'length');
});

test('ai: a stream gives the same text, then why it ended and what it used', async () => {
  const result = streamText({ ...chat, model: provider('demo') });
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  assert.equal(pieces.join(''), ANSWER);
  assert.ok(pieces.length > 3, `streamed in ${pieces.length} pieces`);
  assert.equal(await result.finishReason, 'stop');
  assert.ok((await result.usage).outputTokens > 0);
});

test('ai: an abort ends the stream and frees the request', async () => {
  const controller = new AbortController();
  let aborted = false;
  const result = streamText({
    ...chat,
    model: provider('demo'),
    maxOutputTokens: 1500,
    providerOptions: { vllm: { ignore_eos: true } },
    abortSignal: controller.signal,
    onAbort: () => (aborted = true),
    onError: () => {},
  });
  for await (const part of result.fullStream) {
    if (part.type === 'text-delta') controller.abort();
    if (part.type === 'abort') break;
  }
  assert.ok(aborted);
  await idle();
});

test('ai: an error carries status, message and body', async () => {
  const error = await failure(generateText({ ...chat, temperature: 3, model: provider('demo') }));
  assert.ok(APICallError.isInstance(error), String(error));
  assert.equal(error.statusCode, 400);
  assert.match(error.message, /temperature/);
  assert.equal(error.isRetryable, false);
  const unknown = await failure(generateText({ ...chat, model: provider('nope') }));
  assert.equal(unknown.statusCode, 404);
  const other = createOpenAICompatible({ name: 'vllm', baseURL: `${server.url}/v1`, apiKey: 'x' });
  assert.equal((await failure(generateText({ ...chat, model: other('demo') }))).statusCode, 401);
});

test('ai: a model that generates embeds nothing: no such route', async () => {
  const model = provider.textEmbeddingModel('demo');
  const error = await failure(embed({ model, value: 'x', maxRetries: 0 }));
  assert.equal(error.statusCode, 404);
});

const langchain = (change = {}) =>
  new ChatOpenAI({
    model: 'demo',
    temperature: 0,
    maxRetries: 0,
    apiKey: KEY,
    configuration: { baseURL: `${server.url}/v1`, fetch: platformFetch },
    ...change,
  });

test('langchain: a chat answers', async () => {
  const message = await langchain().invoke([
    ['system', 'Be brief.'],
    ['human', QUESTION],
  ]);
  assert.equal(message.content, ANSWER);
  assert.equal(message.response_metadata.finish_reason, 'stop');
  assert.ok(message.usage_metadata.input_tokens > 0);
});

test('langchain: a stream gives the same text and its usage', async () => {
  let text = '';
  let pieces = 0;
  let usage;
  for await (const chunk of await langchain().stream(QUESTION)) {
    text += chunk.content;
    pieces += chunk.content ? 1 : 0;
    usage = chunk.usage_metadata ?? usage;
  }
  assert.equal(text, ANSWER);
  assert.ok(pieces > 3, `streamed in ${pieces} pieces`);
  assert.ok(usage.output_tokens > 0);
});

test('langchain: a batch answers in order', async () => {
  const answers = await langchain().batch([QUESTION, 'What is the capital of France?']);
  assert.deepEqual(
    answers.map((answer) => answer.content),
    [ANSWER, 'The capital of France is Paris.'],
  );
});

test('langchain: the responses API answers and streams', async () => {
  const model = langchain({ useResponsesApi: true });
  assert.equal((await model.invoke(QUESTION)).text, ANSWER);
  let text = '';
  for await (const chunk of await model.stream(QUESTION)) text += chunk.text;
  assert.equal(text, ANSWER);
});

test('langchain: an abort ends the stream and frees the request', async () => {
  const controller = new AbortController();
  const model = langchain({ maxTokens: 1500, modelKwargs: { ignore_eos: true } });
  const stream = await model.stream(QUESTION, { signal: controller.signal });
  const error = await failure(
    (async () => {
      for await (const chunk of stream) {
        if (chunk.content) controller.abort();
      }
    })(),
  );
  assert.match(String(error), /abort/i);
  await idle();
});

test('langchain: an error carries the status', async () => {
  const error = await failure(langchain({ temperature: 3 }).invoke(QUESTION));
  assert.equal(error.status, 400);
  assert.match(error.message, /temperature/);
  assert.equal((await failure(langchain({ model: 'nope' }).invoke(QUESTION))).status, 404);
  assert.equal((await failure(langchain({ apiKey: 'x' }).invoke(QUESTION))).status, 401);
});
