// What an operator can switch, each switch with what a client sees of it; routes and headers of vLLM
// that are rarely used; and what is refused by its name.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import net from 'node:net';
import { after, before, test } from 'node:test';
import { Server, binary, demo, parseSse, until } from './server.mjs';

const COMPLETIONS = '/v1/completions';
const CHAT = '/v1/chat/completions';
const user = (content) => [{ role: 'user', content }];
const key = { authorization: 'Bearer beta-22' };
let open; // as it comes, for developers
let strict; // with many switches set
before(async () => {
  [open, strict] = await Promise.all([
    Server.start(['--served-model-name', 'demo'], { env: { VLLM_SERVER_DEV_MODE: '1' } }),
    Server.start(['--served-model-name', 'demo', '--api-key', 'alpha-1', 'beta-22', '--api-key-for-metrics', '--enable-request-id-headers',
      '--enable-force-include-usage', '--enable-prompt-tokens-details', '--disable-fastapi-docs', '--h11-max-header-count', '20',
      '--h11-max-incomplete-event-size', '4096', '--allowed-origins', '["http://good"]', '--allowed-methods', '["GET", "POST"]',
      '--allowed-headers', '["x-mine"]', '--allow-credentials', '--root-path', '/behind', '--response-role', 'bot',
      '--return-tokens-as-token-ids', '--disable-access-log-for-endpoints', '/version', '--max-logprobs', '3']),
  ]);
});
after(async () => {
  assert.equal(await open.stop(), 0);
  assert.equal(await strict.stop(), 0);
});

const status = async (server, route, headers) => (await server.get(route, headers)).status;

/** Sends a head as it is; returns the answer's status. */
const rawStatus = (server, head) => new Promise((resolve, reject) => {
  const socket = net.connect(server.port, '127.0.0.1', () => socket.write(head));
  socket.on('error', reject);
  socket.on('close', () => reject(new Error('closed without an answer')));
  socket.once('data', (data) => {
    resolve(Number(/^HTTP\/1\.1 (\d+)/.exec(data)[1]));
    socket.destroy();
  });
});

/** A stream's data events. */
async function streamOf(server, route, body, headers) {
  const response = await fetch(server.url + route, { method: 'POST', headers: { ...headers, 'content-type': 'application/json' },
    body: JSON.stringify({ ...body, stream: true }) });
  assert.equal(response.status, 200);
  return parseSse(await response.text());
}

const preflight = (server, origin, extra) => fetch(server.url + CHAT, { method: 'OPTIONS',
  headers: { origin, 'access-control-request-method': 'POST', ...extra } });

for (const [flag, check] of [
  ['--api-key: each of several opens every route, none opens only the probes', async () => {
    for (const route of ['/v1/models', '/version', '/nowhere', '/tokenize', '/debug/requests/x'])
      assert.equal(await status(strict, route), 401, route);
    for (const route of ['/health', '/ping']) assert.equal(await status(strict, route), 200, route);
    for (const [authorization, expected] of [['Bearer alpha-1', 200], ['Bearer beta-22', 200], ['bearer alpha-1', 200], ['Bearer alpha-', 401],
      ['Bearer alpha-1x', 401], ['Bearer alpha-1,beta-22', 401], ['Bearer ', 401], ['alpha-1', 401], ['Basic alpha-1', 401],
      [`Bearer ${'a'.repeat(3000)}`, 401]])
      assert.equal(await status(strict, '/v1/models', { authorization }), expected, authorization.slice(0, 40));
    const { body } = await strict.get('/metrics', key);
    assert.ok(!/alpha-1|beta-22/.test(strict.log + body), 'no key is shown');
  }],
  ['--api-key-for-metrics', async () => {
    assert.equal(await status(strict, '/metrics'), 401);
    assert.equal(await status(strict, '/metrics', key), 200);
    assert.equal(await status(open, '/metrics'), 200);
  }],
  ['--disable-fastapi-docs', async () => {
    for (const route of ['/docs', '/redoc', '/openapi.json']) {
      assert.equal(await status(strict, route, key), 404, route);
      assert.equal(await status(open, route), 200, route);
    }
  }],
  ['--enable-request-id-headers', async () => {
    assert.equal((await strict.get('/v1/models', { ...key, 'x-request-id': 'mine' })).headers.get('x-request-id'), 'mine');
    assert.match((await strict.get('/v1/models', key)).headers.get('x-request-id'), /^[0-9a-f]{32}$/);
    assert.equal((await open.get('/v1/models', { 'x-request-id': 'mine' })).headers.get('x-request-id'), null);
  }],
  ['--enable-force-include-usage', async () => {
    const body = { prompt: 'a', max_tokens: 3, ignore_eos: true };
    const events = await streamOf(strict, COMPLETIONS, body, key);
    assert.ok(events.slice(0, -1).every((e) => e.usage), 'usage in every chunk');
    assert.ok((await streamOf(open, COMPLETIONS, body)).slice(0, -1).every((e) => !e.usage));
  }],
  ['--enable-prompt-tokens-details', async () => {
    const body = { prompt: 'a', max_tokens: 1 };
    assert.equal((await strict.post(COMPLETIONS, body, key)).body.usage.prompt_tokens_details.cached_tokens, 0);
    assert.equal((await open.post(COMPLETIONS, body)).body.usage.prompt_tokens_details, null);
  }],
  ['--h11-max-header-count', async () => {
    const many = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`x-${i}`, '1']));
    assert.equal(await status(strict, '/v1/models', { ...key, ...many }), 400);
    assert.equal(await status(open, '/v1/models', many), 200);
  }],
  ['--h11-max-incomplete-event-size', async () => {
    const head = `GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ${'a'.repeat(8000)}\r\n\r\n`;
    assert.equal(await rawStatus(strict, head), 400);
    assert.equal(await rawStatus(open, head), 200);
  }],
  ['--allowed-origins and --allow-credentials', async () => {
    const good = await strict.get('/v1/models', { ...key, origin: 'http://good' });
    assert.equal(good.headers.get('access-control-allow-origin'), 'http://good');
    assert.equal(good.headers.get('access-control-allow-credentials'), 'true');
    assert.equal(good.headers.get('vary'), 'Origin');
    assert.equal((await strict.get('/v1/models', { ...key, origin: 'http://bad' })).headers.get('access-control-allow-origin'), null);
    assert.equal((await preflight(strict, 'http://bad')).status, 400);
    const anybody = await open.get('/v1/models', { origin: 'http://bad' });
    assert.equal(anybody.headers.get('access-control-allow-origin'), '*');
    assert.equal(anybody.headers.get('access-control-allow-credentials'), null);
  }],
  ['--allowed-methods', async () => {
    const allowed = await preflight(strict, 'http://good');
    assert.equal(allowed.status, 200);
    assert.equal(allowed.headers.get('access-control-allow-methods'), 'GET, POST');
    assert.equal((await preflight(strict, 'http://good', { 'access-control-request-method': 'DELETE' })).status, 400);
  }],
  ['--allowed-headers', async () => {
    const allowed = await preflight(strict, 'http://good', { 'access-control-request-headers': 'content-type, X-Mine' });
    assert.equal(allowed.status, 200);
    assert.equal(allowed.headers.get('access-control-allow-headers'), 'Accept, Accept-Language, Content-Language, Content-Type, x-mine');
    assert.equal((await preflight(strict, 'http://good', { 'access-control-request-headers': 'x-other' })).status, 400);
    assert.equal((await preflight(open, 'http://a', { 'access-control-request-headers': 'x-other' })).headers.get('access-control-allow-headers'), 'x-other');
  }],
  ['--root-path', async () => {
    assert.equal(await status(strict, '/behind/v1/models', key), 200);
    assert.equal(await status(strict, '/behind/v1/models'), 401);
    assert.equal(await status(open, '/behind/v1/models'), 404);
  }],
  ['--response-role', async () => {
    const { body } = await strict.post(CHAT, { messages: user('hi'), max_tokens: 1 }, key);
    assert.equal(body.choices[0].message.role, 'bot');
  }],
  ['--return-tokens-as-token-ids', async () => {
    const body = { prompt: 'a', max_tokens: 1, logprobs: 0 };
    assert.match((await strict.post(COMPLETIONS, body, key)).body.choices[0].logprobs.tokens[0], /^token_id:\d+$/);
    assert.doesNotMatch((await open.post(COMPLETIONS, body)).body.choices[0].logprobs.tokens[0], /^token_id:/);
  }],
  ['--max-logprobs', async () => {
    const { status: code, body } = await strict.post(COMPLETIONS, { prompt: 'a', logprobs: 4 }, key);
    assert.equal(code, 400);
    assert.match(body.error.message, /greater than max allowed: 3/);
  }],
  ['--disable-access-log-for-endpoints', async () => {
    await strict.get('/version', key);
    await strict.get('/v1/models?last', key);
    await until('the later one is logged', 10, () => strict.log.includes('GET /v1/models?last HTTP/1.1" 200 OK'));
    assert.ok(!strict.log.includes('GET /version'));
  }],
])
  test(flag, check);

// ---- routes and headers ----

test('/invocations hands a body on to the endpoint that it is for', async () => {
  const ask = async (body) => open.post('/invocations', body);
  assert.equal((await ask({ messages: user('hi'), max_tokens: 1 })).body.object, 'chat.completion');
  assert.equal((await ask({ prompt: 'a', max_tokens: 1 })).body.object, 'text_completion');
  assert.equal((await streamOf(open, '/invocations', { prompt: 'a', max_tokens: 2 })).at(-1), '[DONE]');
  for (const [body, phrase] of [[{ input: 'a' }, /Cannot find suitable handler/], ['[]', /Cannot find suitable handler/], ['{', /JSON decode error/],
    [{ prompt: 'a', top_p: 0 }, /top_p must be in/]]) {
    const { status: code, body: answer } = await ask(body);
    assert.equal(code, 400);
    assert.match(answer.error.message, phrase);
  }
});

test('routes of vLLM that are not here yet say so by name, those of other models and modes are not found', async () => {
  const code = async (server, route, headers) => {
    const { status: result, body } = await server.post(route, {}, headers);
    if (result === 501) assert.ok(body.error.message.startsWith(`vllm.c does not support ${route} yet`), body.error.message);
    return result;
  };
  for (const route of ['/v1/chat/completions/batch', '/inference/v1/generate', '/v1/load_lora_adapter', '/start_profile', '/scale_elastic_ep'])
    assert.equal(await code(open, route), 501, route);
  for (const route of ['/sleep', '/wake_up', '/collective_rpc', '/pause']) {
    assert.equal(await code(open, route), 501, route);
    assert.equal(await code(strict, route, key), 404, `${route} is for developers`);
  }
  for (const route of ['/score', '/rerank', '/v1/embeddings', '/v1/audio/transcriptions']) assert.equal(await code(open, route), 404, route);
});

test('an answer carries the load when a balancer asks for it', async () => {
  const header = async (format, body = {}) => (await open.post(COMPLETIONS, { prompt: 'a', max_tokens: 1, ...body },
    format ? { 'endpoint-load-metrics-format': format } : {})).headers.get('endpoint-load-metrics');
  assert.match(await header('TEXT'), /^TEXT named_metrics\.kv_cache_usage_perc=0\.\d+, named_metrics\.num_requests_waiting=0$/);
  const json = await header('json');
  assert.ok(json.startsWith('JSON '));
  assert.equal(JSON.parse(json.slice(5)).named_metrics.num_requests_waiting, 0);
  for (const format of [undefined, 'BIN']) assert.equal(await header(format), null);
});

test('X-data-parallel-rank: the rank that there is, no other', async () => {
  for (const [rank, expected] of [['0', 200], ['1', 400], ['-1', 400], ['x', 200]]) {
    const { status: code, body } = await open.post(COMPLETIONS, { prompt: 'a', max_tokens: 1 }, { 'x-data-parallel-rank': rank });
    assert.equal(code, expected, rank);
    if (code === 400) assert.match(body.error.message, /data_parallel_rank -?1 is out of range \[0, 1\)/);
  }
});

// ---- refused at the start ----

for (const [what, args] of [
  ['--skip-tokenizer-init', ['--skip-tokenizer-init']],
  ['--enable-tokenizer-info-endpoint', ['--enable-tokenizer-info-endpoint']],
  ['--enable-auto-tool-choice', ['--enable-auto-tool-choice', '--tool-call-parser', 'hermes']],
  ['--lora-modules', ['--lora-modules', 'a=b']],
  ['--enable-lora', ['--enable-lora']],
  ['--enable-ssl-refresh', ['--enable-ssl-refresh']],
  ['--tokens-only', ['--tokens-only']],
  ['--ssl-cert-reqs', ['--ssl-cert-reqs', '3']],
  ['--h11-max-header-count', ['--h11-max-header-count', '0']],
  ['--allowed-origins', ['--allowed-origins', '"http://good"']],
  ['--sse-keep-alive-interval', ['--sse-keep-alive-interval', '-1']],
])
  test(`${args.join(' ')} is refused by its name`, () => {
    const { status: code, stderr, stdout } = spawnSync(binary, ['serve', demo, '--host', '127.0.0.1', '--port', '0', ...args],
      { encoding: 'utf8', timeout: 60_000 });
    assert.ok(code > 0, `it ends with ${code}`);
    assert.ok((stdout + stderr).includes(what), stdout + stderr);
  });
