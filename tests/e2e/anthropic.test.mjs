// The real Anthropic client against /v1/messages: whole and streamed answers, content blocks,
// counting, abort, typed errors.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { Server, platformFetch, until } from './server.mjs';

const KEY = 'alpha-1';
let server, client;

before(async () => {
  server = await Server.start(['--api-key', KEY, '--served-model-name', 'demo']);
  // The key travels as a bearer token: x-api-key is not read.
  client = new Anthropic({ baseURL: server.url, authToken: KEY, apiKey: null, maxRetries: 0, fetch: platformFetch });
});
after(async () => assert.equal(await server.stop(), 0));

const ask = {
  model: 'demo',
  max_tokens: 30,
  temperature: 0,
  messages: [{ role: 'user', content: 'What is the capital of Japan?' }],
};

async function failure(promise) {
  return promise.then(
    () => assert.fail('it was accepted'),
    (reason) => reason,
  );
}

/** Tokens of a chat as the server's own template makes it. */
async function chatTokens(messages) {
  const { body } = await server.post('/tokenize', { messages }, { authorization: `Bearer ${KEY}` });
  return body.count;
}

test('a message answers', async () => {
  const message = await client.messages.create(ask);
  assert.equal(message.type, 'message');
  assert.equal(message.role, 'assistant');
  assert.equal(message.model, 'demo');
  assert.deepEqual(message.content, [{ type: 'text', text: 'The capital of Japan is Tokyo.' }]);
  assert.equal(message.stop_reason, 'end_turn');
  assert.equal(message.usage.input_tokens, await chatTokens(ask.messages));
  assert.ok(message.usage.output_tokens > 0);
});

test('system, blocks and turns make the same prompt as a chat', async () => {
  const message = await client.messages.create({
    ...ask,
    max_tokens: 2,
    system: [{ type: 'text', text: 'Be brief.' }],
    messages: [
      { role: 'user', content: [{ type: 'text', text: 'Hello' }] },
      { role: 'assistant', content: 'Hi.' },
      { role: 'user', content: [{ type: 'text', text: 'One' }, { type: 'text', text: 'Two' }] },
    ],
  });
  assert.equal(message.stop_reason, 'max_tokens');
  assert.equal(message.usage.output_tokens, 2);
  const expected = await chatTokens([
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'Hello' },
    { role: 'assistant', content: 'Hi.' },
    { role: 'user', content: 'One\nTwo' },
  ]);
  assert.equal(message.usage.input_tokens, expected);
});

test('tools and thinking in the history reach the template as a chat has them', async () => {
  const { input_tokens } = await client.messages.countTokens({
    model: 'demo',
    messages: [
      { role: 'user', content: 'Weather?' },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'Look.', signature: '' },
          { type: 'text', text: 'Wait.' },
          { type: 'tool_use', id: 't1', name: 'weather', input: { city: 'Paris' } },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 't1', content: [{ type: 'text', text: 'sunny' }] },
          { type: 'text', text: 'So?' },
        ],
      },
    ],
  });
  const expected = await chatTokens([
    { role: 'user', content: 'Weather?' },
    {
      role: 'assistant',
      content: 'Wait.',
      reasoning: 'Look.',
      tool_calls: [
        { id: 't1', type: 'function', function: { name: 'weather', arguments: '{"city":"Paris"}' } },
      ],
    },
    { role: 'tool', tool_call_id: 't1', content: 'sunny' },
    { role: 'user', content: 'So?' },
  ]);
  assert.equal(input_tokens, expected);
});

test('stop sequences end a message', async () => {
  const message = await client.messages.create({ ...ask, stop_sequences: [' Tokyo'] });
  assert.equal(message.content[0].text, 'The capital of Japan is');
  assert.equal(message.stop_reason, 'end_turn');
});

test('a stream has the events in their order and the same text', async () => {
  const events = [];
  for await (const event of await client.messages.create({ ...ask, stream: true }))
    events.push(event);
  const types = events.map((event) => event.type);
  const deltas = types.filter((type) => type === 'content_block_delta').length;
  assert.ok(deltas > 3, `streamed in ${deltas} pieces`);
  assert.deepEqual(types, [
    'message_start',
    'content_block_start',
    ...Array(deltas).fill('content_block_delta'),
    'content_block_stop',
    'message_delta',
    'message_stop',
  ]);
  assert.deepEqual(events[0].message.content, []);
  assert.equal(events[0].message.stop_reason, null);
  assert.equal(events[0].message.usage.input_tokens, await chatTokens(ask.messages));
  assert.equal(events.at(-2).delta.stop_reason, 'end_turn');
  assert.ok(events.at(-2).usage.output_tokens > 0);
});

test('the client library puts a stream together', async () => {
  const stream = client.messages.stream(ask);
  let text = '';
  stream.on('text', (piece) => (text += piece));
  const message = await stream.finalMessage();
  assert.equal(text, 'The capital of Japan is Tokyo.');
  assert.equal(message.content[0].text, text);
  assert.equal(message.stop_reason, 'end_turn');
});

test('an aborted stream frees the request', async () => {
  const stream = client.messages.stream({
    ...ask,
    max_tokens: 1500,
    messages: [{ role: 'user', content: 'Count from 1 to 1000.' }],
  });
  const ended = failure(stream.done());
  await Promise.race([stream.emitted('text'), ended]);
  stream.abort();
  assert.ok((await ended) instanceof Anthropic.APIUserAbortError);
  await until('nothing runs', 2, async () => (await server.metric('vllm:num_requests_running')) === 0);
});

test('tokens are counted, however long the prompt is', async () => {
  const { input_tokens } = await client.messages.countTokens({ model: 'demo', messages: ask.messages });
  assert.equal(input_tokens, await chatTokens(ask.messages));
  const messages = [{ role: 'user', content: 'word '.repeat(20_000) }];
  const long = await client.messages.countTokens({ model: 'demo', messages });
  assert.ok(long.input_tokens >= 20_000);
  assert.equal(long.input_tokens, await chatTokens(messages));
  const error = await failure(client.messages.create({ ...ask, messages }));
  assert.ok(error instanceof Anthropic.BadRequestError);
  assert.match(error.error.error.message, /maximum context length/);
});

const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: '' } };
const failures = [
  ['an unknown model', Anthropic.NotFoundError, /does not exist/, { model: 'nope' }],
  ['an empty model', Anthropic.BadRequestError, /Model is required/, { model: '' }],
  ['no max_tokens', Anthropic.BadRequestError, /body.max_tokens/, { max_tokens: undefined }],
  ['max_tokens 0', Anthropic.BadRequestError, /must be positive/, { max_tokens: 0 }],
  ['a temperature out of range', Anthropic.BadRequestError, /temperature/, { temperature: 3 }],
  ['messages that are no list', Anthropic.BadRequestError, /body.messages/, { messages: 5 }],
  ['an unknown role', Anthropic.BadRequestError, /body.messages.0.role/,
    { messages: [{ role: 'robot', content: 'x' }] }],
  ['an image', Anthropic.BadRequestError, /`image`/, { messages: [{ role: 'user', content: [image] }] }],
  ['thinking of a user', Anthropic.BadRequestError, /message of this role/,
    { messages: [{ role: 'user', content: [{ type: 'thinking', thinking: 'x', signature: '' }] }] }],
  ['a block without its text', Anthropic.BadRequestError, /body.messages.0.content.0.text/,
    { messages: [{ role: 'user', content: [{ type: 'text' }] }] }],
  ['a tool to call', Anthropic.BadRequestError, /--tool-call-parser/,
    { tools: [{ name: 'f', input_schema: { type: 'object' } }] }],
];
for (const [what, type, message, change] of failures) {
  test(`${what} is a typed error in Anthropic's shape`, async () => {
    const error = await failure(client.messages.create({ ...ask, ...change }));
    assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`);
    assert.equal(error.error.type, 'error');
    assert.match(error.error.error.message, message);
    assert.ok(error.error.error.type.length > 0);
  });
}

test('a wrong key is refused, and so is one in x-api-key', async () => {
  for (const keys of [{ authToken: 'alpha-', apiKey: null }, { authToken: null, apiKey: KEY }]) {
    const other = new Anthropic({ baseURL: server.url, maxRetries: 0, fetch: platformFetch, ...keys });
    const error = await failure(other.messages.create(ask));
    assert.ok(error instanceof Anthropic.AuthenticationError, String(error));
  }
});
