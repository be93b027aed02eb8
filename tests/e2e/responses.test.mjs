// The real OpenAI client against /v1/responses: whole and streamed answers, stored and continued
// ones, background and cancel, typed errors; and the small endpoints around them.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { Server, isSlow, platformFetch, until } from './server.mjs';

let server, client;
let bare, bareClient; // keeps no responses, has no docs

const connect = (to) => new OpenAI({ baseURL: `${to.url}/v1`, apiKey: 'any', maxRetries: 0, fetch: platformFetch });

before(async () => {
  server = await Server.start(['--served-model-name', 'demo'], {
    env: { VLLM_ENABLE_RESPONSES_API_STORE: '1', VLLM_SERVER_DEV_MODE: '1' },
  });
  bare = await Server.start(['--served-model-name', 'demo', '--disable-fastapi-docs']);
  client = connect(server);
  bareClient = connect(bare);
});
after(async () => {
  assert.equal(await server.stop(), 0);
  assert.equal(await bare.stop(), 0);
});

const ask = { model: 'demo', input: 'What is the capital of Japan?', temperature: 0 };

const textOf = (response) => response.output[0].content[0].text;

async function failure(promise) {
  return promise.then(
    () => assert.fail('it was accepted'),
    (reason) => reason,
  );
}

test('a response answers with one message', async () => {
  const response = await client.responses.create({ ...ask, metadata: { topic: 'cities' } });
  assert.match(response.id, /^resp_/);
  assert.equal(response.object, 'response');
  assert.equal(response.status, 'completed');
  assert.equal(response.output_text, 'The capital of Japan is Tokyo.');
  assert.equal(response.output.length, 1);
  assert.match(response.output[0].id, /^msg_/);
  assert.equal(response.output[0].role, 'assistant');
  assert.equal(response.output[0].content[0].type, 'output_text');
  assert.deepEqual(response.metadata, { topic: 'cities' });
  assert.equal(response.temperature, 0);
  assert.equal(response.incomplete_details, null);
  const { input_tokens, output_tokens, total_tokens } = response.usage;
  assert.ok(input_tokens > 0 && output_tokens > 0);
  assert.equal(total_tokens, input_tokens + output_tokens);
});

test('items, parts and instructions make the same prompt as a chat', async () => {
  const parts = [{ type: 'input_text', text: 'What is the capital of Japan?' }];
  const response = await client.responses.create({
    model: 'demo',
    temperature: 0,
    instructions: 'Be brief.',
    input: [
      { role: 'user', content: 'Hello' },
      { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'Hi.' }] },
      { role: 'user', content: parts },
    ],
  });
  const { body } = await server.post('/tokenize', {
    messages: [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'Hello' },
      { role: 'assistant', content: 'Hi.' },
      { role: 'user', content: 'What is the capital of Japan?' },
    ],
  });
  assert.equal(response.usage.input_tokens, body.count);
  assert.equal(response.instructions, 'Be brief.');
});

test('a response cut by its limit is incomplete', async () => {
  const response = await client.responses.create({ ...ask, max_output_tokens: 2 });
  assert.equal(response.status, 'incomplete');
  assert.deepEqual(response.incomplete_details, { reason: 'max_output_tokens' });
  assert.equal(response.usage.output_tokens, 2);
  assert.equal(response.max_output_tokens, 2);
});

test('a stream has the events in their order and the same text', async () => {
  const events = [];
  for await (const event of await client.responses.create({ ...ask, stream: true }))
    events.push(event);
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, i) => i),
  );
  const types = events.map((event) => event.type);
  const deltas = types.filter((type) => type === 'response.output_text.delta').length;
  assert.ok(deltas > 3, `streamed in ${deltas} pieces`);
  assert.deepEqual(types, [
    'response.created',
    'response.in_progress',
    'response.output_item.added',
    'response.content_part.added',
    ...Array(deltas).fill('response.output_text.delta'),
    'response.output_text.done',
    'response.content_part.done',
    'response.output_item.done',
    'response.completed',
  ]);
  const text = events
    .filter((event) => event.type === 'response.output_text.delta')
    .map((event) => event.delta)
    .join('');
  assert.equal(text, 'The capital of Japan is Tokyo.');
  assert.equal(events.at(-4).text, text);
  assert.equal(events.at(-3).part.text, text);
  assert.equal(events.at(-2).item.content[0].text, text);
  const { response } = events.at(-1);
  assert.equal(response.status, 'completed');
  assert.equal(response.output[0].content[0].text, text);
  assert.ok(response.usage.output_tokens > 0);
  const items = new Set(events.filter((event) => event.item_id).map((event) => event.item_id));
  assert.deepEqual([...items], [response.output[0].id]);
  assert.equal(events[0].response.status, 'in_progress');
  assert.equal(textOf(await client.responses.retrieve(response.id)), text);
});

test('the client library follows a stream to its end', async () => {
  const stream = client.responses.stream({ ...ask });
  let text = '';
  stream.on('response.output_text.delta', (event) => (text += event.delta));
  const final = await stream.finalResponse();
  assert.equal(text, 'The capital of Japan is Tokyo.');
  assert.equal(textOf(final), text);
});

test('log-probabilities come when they are included', async () => {
  const response = await client.responses.create({
    ...ask,
    include: ['message.output_text.logprobs'],
    top_logprobs: 2,
  });
  const { logprobs } = response.output[0].content[0];
  assert.equal(logprobs.length, response.usage.output_tokens);
  assert.ok(logprobs.every((entry) => entry.logprob <= 0 && entry.top_logprobs.length === 2));
  const plain = await client.responses.create(ask);
  assert.equal(plain.output[0].content[0].logprobs, null);
});

test('an aborted stream frees the request', async () => {
  const stream = await client.responses.create({
    ...ask,
    stream: true,
    max_output_tokens: 1500,
    ignore_eos: true,
  });
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta') break;
  }
  stream.controller.abort();
  await until('nothing runs', 2, async () => (await server.metric('vllm:num_requests_running')) === 0);
});

test('a stored response can be read again and continued', async () => {
  const first = await client.responses.create({ ...ask, instructions: 'Be brief.' });
  const again = await client.responses.retrieve(first.id);
  assert.deepEqual({ ...again, output_text: undefined }, { ...first, output_text: undefined });
  const second = await client.responses.create({
    model: 'demo',
    temperature: 0,
    input: 'And of France?',
    previous_response_id: first.id,
  });
  assert.equal(second.previous_response_id, first.id);
  // The conversation is carried over, the instructions are not.
  const { body } = await server.post('/tokenize', {
    messages: [
      { role: 'user', content: ask.input },
      { role: 'assistant', content: first.output_text },
      { role: 'user', content: 'And of France?' },
    ],
  });
  assert.equal(second.usage.input_tokens, body.count);
  const third = await client.responses.create({
    model: 'demo',
    temperature: 0,
    input: 'Thank you.',
    previous_response_id: second.id,
  });
  assert.ok(third.usage.input_tokens > second.usage.input_tokens + second.usage.output_tokens);
});

test('a response that is not to be stored is not there', async () => {
  const { id } = await client.responses.create({ ...ask, store: false });
  const error = await failure(client.responses.retrieve(id));
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.equal(error.type, 'invalid_request_error');
  assert.equal(error.error.message, `Response with id '${id}' not found.`);
});

test('a background response completes without its client', async () => {
  const response = await client.responses.create({ ...ask, background: true });
  assert.equal(response.status, 'queued');
  assert.equal(response.background, true);
  assert.deepEqual(response.output, []);
  const done = await until('it is done', 10, async () => {
    const now = await client.responses.retrieve(response.id);
    return now.status !== 'queued' && now.status !== 'in_progress' ? now : null;
  });
  assert.equal(done.status, 'completed');
  assert.equal(textOf(done), 'The capital of Japan is Tokyo.');
});

test('a background response can be cancelled, once', async () => {
  const long = { ...ask, background: true, max_output_tokens: 1900, ignore_eos: true };
  const { id } = await client.responses.create(long);
  await until('it runs', 5, async () => (await client.responses.retrieve(id)).status === 'in_progress');
  const early = await failure(client.responses.create({ ...ask, previous_response_id: id }));
  assert.equal(early.status, 400);
  const cancelled = await client.post(`/responses/${id}/cancel`);
  assert.equal(cancelled.id, id);
  assert.equal(cancelled.status, 'cancelled');
  assert.equal((await client.responses.retrieve(id)).status, 'cancelled');
  await until('nothing runs', 2, async () => (await server.metric('vllm:num_requests_running')) === 0);
  const again = await failure(client.post(`/responses/${id}/cancel`));
  assert.equal(again.status, 400);
  assert.equal(again.error.message, 'Cannot cancel a synchronous response.');
});

const eventsFrom = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

test('a background response streams to whoever asks, from any event on, and outlives its client', async () => {
  const controller = new AbortController();
  const body = { ...ask, background: true, stream: true, max_output_tokens: 300, ignore_eos: true };
  const stream = await client.responses.create(body, { signal: controller.signal });
  const seen = [];
  for await (const event of stream) {
    seen.push(event);
    if (seen.length === 6) break;
  }
  controller.abort(); // the client goes; the response does not
  const { id } = seen[0].response;
  const follow = (query) => client.get(`/responses/${id}?${query}`, { stream: true }).then(eventsFrom);
  const [all, rest] = await Promise.all([follow('stream=true'), follow(`stream=true&starting_after=${seen[5].sequence_number}`)]);
  assert.deepEqual(all.map((event) => event.sequence_number), all.map((_, i) => i));
  assert.deepEqual([...seen, ...rest], all);
  assert.equal(all.at(-1).type, 'response.completed');
  const text = all.filter((event) => event.type === 'response.output_text.delta').map((event) => event.delta).join('');
  assert.equal(text, textOf(all.at(-1).response));
  const stored = await client.responses.retrieve(id);
  assert.equal(stored.status, 'incomplete');
  assert.equal(textOf(stored), text);
  assert.deepEqual(await follow('stream=true'), all); // also when it has long ended
  assert.deepEqual(await follow(`stream=true&starting_after=${all.length - 1}`), []);
});

test('cancelling a background stream ends it for its readers', async () => {
  const body = { ...ask, background: true, stream: true, max_output_tokens: 1900, ignore_eos: true };
  const events = [];
  let cancelled;
  for await (const event of await client.responses.create(body)) {
    events.push(event);
    if (events.length === 8) cancelled = client.post(`/responses/${events[0].response.id}/cancel`);
  }
  assert.equal((await cancelled).status, 'cancelled');
  assert.equal(events.at(-1).type, 'response.completed');
  assert.equal(events.at(-1).response.status, 'cancelled');
});

test('only a background stream can be streamed again, and only from an event number', async () => {
  const { id } = await client.responses.create(ask);
  const plain = await server.get(`/v1/responses/${id}?stream=true`);
  assert.equal(plain.status, 400);
  assert.match(JSON.parse(plain.body).error.message, /background=true/);
  const junk = await server.get(`/v1/responses/${id}?stream=true&starting_after=x`);
  assert.equal(junk.status, 400);
  assert.equal(JSON.parse(junk.body).error.param, 'query.starting_after');
});

// A thousand requests and more; slow builds have the store's own unit tests.
test('the number of stored responses is bounded: the oldest is forgotten', { skip: isSlow && 'a slow build' }, async () => {
  const first = await client.responses.create({ ...ask, max_output_tokens: 1 });
  const fill = async (count) => {
    for (let i = 0; i < count; i++)
      await client.responses.create({ ...ask, max_output_tokens: 1 });
  };
  await Promise.all(Array.from({ length: 32 }, () => fill(32)));
  assert.equal((await failure(client.responses.retrieve(first.id))).status, 404);
  const last = await client.responses.create({ ...ask, max_output_tokens: 1 });
  assert.equal((await client.responses.retrieve(last.id)).id, last.id);
});

const refusals = [
  ['no input', 'Bad Request', 'body.input', { input: undefined }],
  ['an input that is a number', 'Bad Request', 'body.input', { input: 5 }],
  ['an item without a type', 'Bad Request', 'body.input.0', { input: [{}] }],
  ['an item of an unknown type', 'BadRequestError', 'input', { input: [{ type: 'web_search_call' }] }],
  ['an image', 'BadRequestError', 'messages',
    { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] }],
  ['a prompt template', 'invalid_request_error', null, { prompt: { id: 'p' } }],
  ['truncation', 'BadRequestError', 'truncation', { truncation: 'auto' }],
  ['an unknown service tier', 'Bad Request', 'body.service_tier', { service_tier: 'gold' }],
  ['background without store', 'Bad Request', 'background', { background: true, store: false }],
  ['a temperature out of range', 'BadRequestError', 'temperature', { temperature: 3 }],
  ['a limit over the context', 'BadRequestError', 'max_output_tokens', { max_output_tokens: 5000 }],
  ['a tool to call', 'BadRequestError', null,
    { tools: [{ type: 'function', name: 'f', parameters: {} }] }],
  ['a tool that is not a function', 'BadRequestError', 'tools', { tools: [{ type: 'web_search' }] }],
  ['something unknown to include', 'Bad Request', 'body.include', { include: ['everything'] }],
  ['a format of the text', 'BadRequestError', 'text.format',
    { text: { format: { type: 'json_schema', name: 'n', schema: {} } } }],
  ['a conversation', 'BadRequestError', 'conversation', { conversation: 'c' }],
];
for (const [what, type, param, change] of refusals) {
  test(`${what} is refused by name`, async () => {
    const { status, body } = await server.post('/v1/responses', { ...ask, ...change });
    assert.equal(status, 400, JSON.stringify(body));
    assert.equal(body.error.type, type, JSON.stringify(body));
    assert.equal(body.error.param, param, JSON.stringify(body));
  });
}

test('an unknown model and an unknown previous response are 404', async () => {
  const model = await failure(client.responses.create({ ...ask, model: 'nope' }));
  assert.ok(model instanceof OpenAI.NotFoundError);
  const previous = await failure(client.responses.create({ ...ask, previous_response_id: 'resp_x' }));
  assert.ok(previous instanceof OpenAI.NotFoundError);
  assert.equal(previous.error.message, "Response with id 'resp_x' not found.");
});

test('a server that keeps no responses answers, and says what it does not do', async () => {
  const response = await bareClient.responses.create(ask);
  assert.equal(response.output_text, 'The capital of Japan is Tokyo.');
  assert.equal((await failure(bareClient.responses.retrieve(response.id))).status, 404);
  const background = await failure(bareClient.responses.create({ ...ask, background: true }));
  assert.equal(background.status, 400);
  assert.match(background.error.message, /VLLM_ENABLE_RESPONSES_API_STORE=1/);
});

test('stored responses need one API server, which is said at start', async () => {
  const refused = await Server.start(['--api-server-count', '2'], {
    env: { VLLM_ENABLE_RESPONSES_API_STORE: '1' },
    wait: false,
  });
  await until('it gives up', 10, () => refused.exitCode !== undefined).finally(() => refused.stop());
  assert.equal(refused.exitCode, 1);
  assert.match(refused.log, /VLLM_ENABLE_RESPONSES_API_STORE=1 works with one API server/);
});

test('calls of tools in the history reach the template as a chat has them', async () => {
  const response = await client.responses.create({
    model: 'demo',
    temperature: 0,
    max_output_tokens: 4,
    input: [
      { role: 'user', content: 'Weather?' },
      { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'Look.' }] },
      { type: 'function_call', call_id: 'call_1', name: 'weather', arguments: '{"city":"Paris"}' },
      { type: 'function_call_output', call_id: 'call_1', output: 'sunny' },
    ],
  });
  const { body } = await server.post('/tokenize', {
    messages: [
      { role: 'user', content: 'Weather?' },
      {
        role: 'assistant',
        content: '',
        reasoning: 'Look.',
        tool_calls: [
          { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{"city":"Paris"}' } },
        ],
      },
      { role: 'tool', tool_call_id: 'call_1', content: 'sunny' },
    ],
  });
  assert.equal(response.usage.input_tokens, body.count);
});

// ---- around them ----

test('render shows the prompt and what the engine would get', async () => {
  const messages = [{ role: 'user', content: 'Hi' }];
  const before_ = await server.metric('vllm:request_success_total');
  const { status, body } = await server.post('/v1/chat/completions/render', {
    messages,
    temperature: 0.5,
    max_tokens: 7,
    stop: ['x'],
    seed: 3,
    bad_words: ['No'],
    structured_outputs: { choice: ['Yes', 'Maybe'] },
  });
  assert.equal(status, 200);
  const tokens = (await server.post('/v1/tokenize', { messages })).body.tokens;
  assert.deepEqual(body.token_ids, tokens);
  assert.equal((await server.post('/v1/detokenize', { tokens })).body.prompt, body.prompt);
  assert.equal(body.sampling_params.temperature, 0.5);
  assert.equal(body.sampling_params.max_tokens, 7);
  assert.equal(body.sampling_params.seed, 3);
  assert.deepEqual(body.sampling_params.stop, ['x']);
  assert.deepEqual(body.sampling_params.bad_words, ['No']);
  assert.deepEqual(body.sampling_params.structured_outputs, { choice: ['Yes', 'Maybe'] });
  const texts = await server.post('/v1/completions/render', { prompt: ['One', 'Two'] });
  assert.deepEqual(texts.body.map((entry) => entry.prompt), ['One', 'Two']);
  const bad = await server.post('/v1/chat/completions/render', { messages, temperature: 9 });
  assert.equal(bad.status, 400);
  assert.equal(bad.body.error.param, 'temperature');
  assert.equal(await server.metric('vllm:request_success_total'), before_);
});

test('server_info tells options, environment and machine, and no keys', async () => {
  const json = JSON.parse((await server.get('/server_info?config_format=json')).body);
  assert.deepEqual(json.vllm_config.served_model_name, ['demo']);
  assert.equal(json.vllm_config.port, server.port);
  assert.equal(json.vllm_env.VLLM_SERVER_DEV_MODE, '1');
  assert.equal(json.system_env.os, 'Linux');
  const text = JSON.parse((await server.get('/server_info')).body);
  assert.match(text.vllm_config, /'served_model_name': \["demo"\]/);
  assert.equal((await server.get('/server_info?config_format=xml')).status, 400);
  assert.equal((await bare.get('/server_info')).status, 404);
  const keyed = await Server.start(['--api-key', 'secret-1'], {
    env: { VLLM_API_KEY: 'secret-2', VLLM_SERVER_DEV_MODE: '1' },
  });
  const key = { authorization: 'Bearer secret-1' };
  const { body } = await keyed.get('/server_info?config_format=json', key);
  const openapi = JSON.parse((await keyed.get('/openapi.json', key)).body);
  await keyed.stop();
  assert.equal(JSON.parse(body).vllm_config.port, keyed.port);
  assert.doesNotMatch(body, /secret/);
  assert.deepEqual(openapi.paths['/v1/responses'].post.security, [{ bearer: [] }]);
  assert.equal(openapi.paths['/health'].get.security, undefined);
});

test('openapi.json describes every route of the log, and only those', async () => {
  const { status, body } = await server.get('/openapi.json');
  assert.equal(status, 200);
  const api = JSON.parse(body);
  assert.match(api.openapi, /^3\.1\./);
  const described = Object.entries(api.paths).map(
    ([path, item]) => `${path} ${Object.keys(item).map((method) => method.toUpperCase()).join(', ')}`,
  );
  const logged = [...server.log.matchAll(/Route: (\S+), Methods: ([A-Z, ]+)/g)].map(
    (match) => `${match[1]} ${match[2].trim()}`,
  );
  assert.ok(logged.length > 20);
  assert.deepEqual(described.sort(), logged.sort());
  const ids = [];
  for (const item of Object.values(api.paths)) {
    for (const operation of Object.values(item)) {
      ids.push(operation.operationId);
      assert.ok(operation.summary.length > 3);
      assert.ok(operation.responses['200'].description);
      const ref = operation.requestBody?.content['application/json'].schema.$ref;
      if (ref) assert.ok(api.components.schemas[ref.split('/').at(-1)], ref);
    }
  }
  assert.equal(new Set(ids).size, ids.length);
  const chat = api.components.schemas.ChatCompletionRequest;
  assert.deepEqual(chat.required, ['messages']);
  assert.deepEqual(chat.properties.stop.type, ['string', 'array']);
});

test('the docs are there unless they are switched off', async () => {
  const page = await server.get('/docs');
  assert.equal(page.status, 200);
  assert.match(page.body, /\/v1\/responses/);
  for (const route of ['/docs', '/openapi.json']) assert.equal((await bare.get(route)).status, 404);
  const { body } = await bare.get('/metrics');
  assert.match(body, /handler="\/v1\/responses"/);
});
