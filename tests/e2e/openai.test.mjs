// The real OpenAI client against the real server: models, chat, completions, abort, typed errors.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { Server, demo, platformFetch, until } from './server.mjs';

const KEY = 'alpha-1';
let server, client;

const connect = (apiKey) =>
  new OpenAI({ baseURL: `${server.url}/v1`, apiKey, maxRetries: 0, fetch: platformFetch });

before(async () => {
  server = await Server.start(['--api-key', KEY, 'beta-22', '--served-model-name', 'demo']);
  client = connect(KEY);
});
after(async () => assert.equal(await server.stop(), 0));

const question = [{ role: 'user', content: 'What is the capital of Japan?' }];

test('models are listed', async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.equal(models.length, 1);
  assert.equal(models[0].id, 'demo');
  assert.equal(models[0].object, 'model');
  assert.equal(models[0].owned_by, 'vllm');
  assert.equal(models[0].root, demo);
  assert.equal(models[0].max_model_len, 2048);
});

test('a chat answers', async () => {
  const answer = await client.chat.completions.create({
    model: 'demo',
    messages: question,
    temperature: 0,
    max_tokens: 30,
  });
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.equal(answer.choices[0].message.content, 'The capital of Japan is Tokyo.');
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.match(answer.id, /^chatcmpl-/);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test('a streamed chat gives the same text, then the usage', async () => {
  const stream = await client.chat.completions.create({
    model: 'demo',
    messages: question,
    temperature: 0,
    max_tokens: 30,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = '';
  let finish, usage;
  let pieces = 0;
  for await (const chunk of stream) {
    if (chunk.choices.length === 0) {
      usage = chunk.usage;
      continue;
    }
    const delta = chunk.choices[0].delta.content ?? '';
    text += delta;
    pieces += delta ? 1 : 0;
    finish = chunk.choices[0].finish_reason ?? finish;
  }
  assert.equal(text, 'The capital of Japan is Tokyo.');
  assert.equal(finish, 'stop');
  assert.ok(pieces > 3, `streamed in ${pieces} pieces`);
  assert.ok(usage.completion_tokens > 0);
});

test('completions answer text, token ids and batches', async () => {
  const ask = (prompt) =>
    client.completions.create({ model: 'demo', prompt, temperature: 0, max_tokens: 8 });
  const one = await ask('Once upon a time');
  assert.equal(one.object, 'text_completion');
  assert.ok(one.choices[0].text.length > 0);
  const { body } = await server.post('/tokenize', { model: 'demo', prompt: 'Once upon a time' },
    { authorization: `Bearer ${KEY}` });
  const ids = await ask(body.tokens);
  assert.equal(ids.choices[0].text, one.choices[0].text);
  const batch = await ask(['Once upon a time', 'The sky is']);
  assert.equal(batch.choices.length, 2);
  assert.equal(batch.choices[0].text, one.choices[0].text);
  assert.deepEqual(batch.choices.map((choice) => choice.index), [0, 1]);
});

test('a streamed completion concatenates to the plain one', async () => {
  const body = { model: 'demo', prompt: 'Once upon a time', temperature: 0, max_tokens: 24 };
  const plain = await client.completions.create(body);
  let text = '';
  for await (const chunk of await client.completions.create({ ...body, stream: true }))
    text += chunk.choices[0]?.text ?? '';
  assert.equal(text, plain.choices[0].text);
});

test('n choices differ by seed and repeat as a set', async () => {
  const body = {
    model: 'demo',
    messages: [{ role: 'user', content: 'Tell me a story.' }],
    temperature: 1.5,
    seed: 7,
    n: 3,
    max_tokens: 24,
  };
  const texts = async () =>
    (await client.chat.completions.create(body)).choices.map((choice) => choice.message.content);
  const first = await texts();
  assert.equal(new Set(first).size, 3);
  assert.deepEqual(await texts(), first);
});

test('an aborted stream frees the request within a second', async () => {
  const stream = await client.chat.completions.create({
    model: 'demo',
    messages: question,
    max_tokens: 1500,
    stream: true,
    ignore_eos: true,
  });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break;
  }
  stream.controller.abort();
  await until('nothing runs', 20, async () => (await server.metric('vllm:num_requests_running')) === 0);
  await until('all blocks are free', 20, async () => (await server.metric('vllm:kv_cache_usage_perc')) === 0);
});

const failures = [
  ['a wrong key', OpenAI.AuthenticationError, 401, { key: 'alpha-' }],
  ['an unknown model', OpenAI.NotFoundError, 404, { model: 'nope' }],
  ['a temperature out of range', OpenAI.BadRequestError, 400, { temperature: 3 }],
  ['top_p zero', OpenAI.BadRequestError, 400, { top_p: 0 }],
  ['a prompt and limit over the context', OpenAI.BadRequestError, 400, { max_tokens: 5000 }],
  ['messages that are no list', OpenAI.BadRequestError, 400, { messages: 5 }],
  ['an empty tools list', OpenAI.BadRequestError, 400, { tools: [] }],
];
for (const [what, type, status, { key, ...change }] of failures) {
  test(`${what} is a typed error`, async () => {
    const asker = key ? connect(key) : client;
    const body = { model: 'demo', messages: question, max_tokens: 2, ...change };
    const error = await asker.chat.completions.create(body).then(
      () => assert.fail('it was accepted'),
      (reason) => reason,
    );
    assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`);
    assert.equal(error.status, status);
    assert.ok(await server.healthy());
  });
}

test('every configured key is good, and only probes and metrics go without', async () => {
  const other = connect('beta-22');
  assert.ok((await other.models.list()).data.length === 1);
  for (const route of ['/health', '/metrics', '/ping'])
    assert.equal((await server.get(route)).status, 200, route);
  for (const route of ['/version', '/load', '/openapi.json'])
    assert.equal((await server.get(route)).status, 401, route);
});
