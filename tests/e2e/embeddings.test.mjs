// Pooling servers: the real OpenAI client for vectors, values of an independent implementation, and
// everything that a request for embeddings may be told.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { Server, binary, demo, isSlow, platformFetch, root, sleep, until } from './server.mjs';

const fixture = path.join(root, 'tests', 'fixtures', 'models', 'qwen3');
let server, client;

before(async () => {
  // Steps that are far shorter than the longest prompts.
  server = await Server.start([
    '--runner', 'pooling', '--max-num-batched-tokens', '96', '--max-num-seqs', '8',
    '--served-model-name', 'vectors', '--hf-overrides', '{"is_matryoshka": true}',
    '--enable-prompt-tokens-details',
  ]);
  client = new OpenAI({
    baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0, fetch: platformFetch,
  });
});
after(async () => assert.equal(await server.stop(), 0));

const length = (vector) => Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0));

// A GPU computes in the checkpoint's 16 bits; the vectors to compare with are of float32.
const rounding = process.env.VLLM_TARGET_DEVICE === 'cuda' ? 0.03 : 1e-4;

function close(found, expected, tolerance = 1e-6) {
  assert.equal(found.length, expected.length);
  found.forEach((x, i) =>
    assert.ok(Math.abs(x - expected[i]) <= tolerance, `${i}: found ${x}, expected ${expected[i]}`));
}

/** The vectors of a request as they stand in its base64: equal texts are equal to the bit. */
async function embed(on, body) {
  const answer = await on.post('/v1/embeddings', { encoding_format: 'base64', ...body });
  assert.equal(answer.status, 200, JSON.stringify(answer.body));
  return answer.body.data.map((item) => item.embedding);
}

async function tokenize(on, body) {
  return (await on.post('/tokenize', body)).body.tokens;
}

test('the client gets the same vector as numbers and as base64', async () => {
  const asBase64 = await client.embeddings.create({ model: 'vectors', input: 'A small house' });
  const asNumbers = await client.embeddings.create({
    model: 'vectors', input: 'A small house', encoding_format: 'float',
  });
  assert.equal(asNumbers.object, 'list');
  assert.equal(asNumbers.model, 'vectors');
  assert.match(asNumbers.id, /^embd-/);
  assert.equal(asNumbers.data.length, 1);
  assert.equal(asNumbers.data[0].object, 'embedding');
  assert.equal(asNumbers.data[0].index, 0);
  const vector = asNumbers.data[0].embedding;
  assert.equal(vector.length, 384);
  assert.deepEqual(vector.map(Math.fround), [...asBase64.data[0].embedding].map(Math.fround));
  assert.ok(Math.abs(length(vector) - 1) < 1e-5);
  const tokens = await tokenize(server, { prompt: 'A small house' });
  assert.equal(asNumbers.usage.prompt_tokens, tokens.length);
  assert.equal(asNumbers.usage.total_tokens, tokens.length);
  assert.equal(asNumbers.usage.completion_tokens, 0);
});

test('texts, ids and lists of them give the same vectors in the order of the inputs', async () => {
  const texts = ['one', 'Once upon a time there was a fox.', 'three words here'];
  const ids = [];
  for (const prompt of texts) ids.push(await tokenize(server, { prompt }));
  const together = await embed(server, { input: texts });
  assert.equal(new Set(together).size, texts.length);
  assert.deepEqual(await embed(server, { input: ids }), together);
  for (const [i, text] of texts.entries()) {
    assert.deepEqual(await embed(server, { input: text }), [together[i]]);
    assert.deepEqual(await embed(server, { input: ids[i] }), [together[i]]);
  }
});

test('messages are rendered by the template without a generation prompt', async () => {
  const messages = [{ role: 'user', content: 'What is a fox?' }];
  const ids = await tokenize(server, { messages, add_generation_prompt: false });
  assert.deepEqual(await embed(server, { messages }), await embed(server, { input: ids }));
  const longer = await tokenize(server, { messages, add_generation_prompt: true });
  assert.deepEqual(await embed(server, { messages, add_generation_prompt: true }),
    await embed(server, { input: longer }));
});

/** The fixture's final hidden states of its 17-token prompt, computed by another implementation. */
function goldenStates() {
  const bytes = fs.readFileSync(path.join(fixture, 'intermediates.safetensors'));
  const headerLength = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + headerLength).toString());
  const { shape, data_offsets: [begin] } = header.final_norm;
  const [rows, columns] = shape.slice(-2);
  return Array.from({ length: rows }, (_, r) =>
    Array.from({ length: columns }, (_, c) =>
      bytes.readFloatLE(8 + headerLength + begin + 4 * (r * columns + c))));
}

for (const type of ['LAST', 'MEAN']) {
  test(`${type} vectors are those of another implementation`, async () => {
    const expected = JSON.parse(fs.readFileSync(path.join(fixture, 'expected.json'), 'utf8'));
    const ids = expected.prompts[1].input_ids;
    const states = goldenStates();
    const pooled = states[0].map((_, c) => type === 'LAST' ? states[16][c]
      : states.reduce((sum, state) => sum + state[c], 0) / states.length);
    const on = await Server.start(
      ['--convert', 'embed', '--pooler-config', JSON.stringify({ pooling_type: type }),
        '--max-num-batched-tokens', '6', '--max-num-seqs', '2'], { model: fixture });
    try {
      const ask = async (more) => (await on.post('/v1/embeddings', { input: [ids], ...more }))
        .body.data[0].embedding;
      const largest = Math.max(...pooled.map(Math.abs));
      close(await ask({ use_activation: false }), pooled, rounding * largest);
      close(await ask({}), pooled.map((x) => x / length(pooled)), rounding);
      assert.deepEqual(await ask({}), await ask({}));
      const again = await on.post('/v1/embeddings', { input: [ids] });
      assert.equal(again.body.usage.prompt_tokens, 17);
      // A mean needs every token's hidden state, which the prefix cache does not hold.
      const hits = await on.metric('vllm:prefix_cache_hits_total');
      if (type === 'LAST') assert.ok(hits > 0);
      else assert.equal(hits, 0);
      const refused = await on.post('/v1/embeddings', { input: 'x', dimensions: 4 });
      assert.equal(refused.status, 400);
      assert.match(refused.body.error.message, /does not support matryoshka representation/);
    } finally {
      assert.equal(await on.stop(), 0);
    }
  });
}

test('dimensions cut the vector and scale what is left', async () => {
  const whole = await client.embeddings.create({
    model: 'vectors', input: 'A fox', encoding_format: 'float',
  });
  const cut = await client.embeddings.create({
    model: 'vectors', input: 'A fox', encoding_format: 'float', dimensions: 32,
  });
  const first = whole.data[0].embedding.slice(0, 32);
  close(cut.data[0].embedding, first.map((x) => x / length(first)));
  const raw = await server.post('/v1/embeddings', {
    input: 'A fox', dimensions: 32, use_activation: false,
  });
  const vector = raw.body.data[0].embedding;
  close(vector.map((x) => x / length(vector)), cut.data[0].embedding);
  assert.ok(Math.abs(length(vector) - 1) > 1e-3);
});

test('base64 comes in the type and byte order that were asked for', async () => {
  const ask = async (more) => Buffer.from((await embed(server, { input: 'A fox', ...more }))[0], 'base64');
  const plain = await ask({});
  assert.equal(plain.length, 384 * 4);
  const swapped = Buffer.from(await ask({ endianness: 'big' })).swap32();
  assert.deepEqual(swapped, plain);
  const short = await ask({ embed_dtype: 'bfloat16' });
  assert.equal(short.length, 384 * 2);
  for (let i = 0; i < 384; i++) {
    const widened = Buffer.alloc(4);
    widened.writeUInt16LE(short.readUInt16LE(2 * i), 2);
    const expected = plain.readFloatLE(4 * i);
    assert.ok(Math.abs(widened.readFloatLE(0) - expected) <= Math.abs(expected) / 256);
  }
  const half = await ask({ embed_dtype: 'float16', endianness: 'little' });
  assert.equal(half.length, 384 * 2);
  assert.notDeepEqual(half, short);
});

test('prompts are truncated on the side that was asked for', async () => {
  const ids = await tokenize(server, { prompt: 'one two three four five six seven eight' });
  const [left, right] = [ids.slice(-3), ids.slice(0, 3)];
  assert.deepEqual(await embed(server, { input: ids, truncate_prompt_tokens: 3 }),
    await embed(server, { input: left }));
  assert.deepEqual(
    await embed(server, { input: ids, truncate_prompt_tokens: 3, truncation_side: 'right' }),
    await embed(server, { input: right }));
  const long = Array.from({ length: 2100 }, (_, i) => 5 + (i % 900));
  assert.deepEqual(await embed(server, { input: long, truncate_prompt_tokens: -1 }),
    await embed(server, { input: long.slice(-2048) }));
});

test('a prompt may fill the context and not more', async () => {
  const full = Array.from({ length: 2048 }, (_, i) => 7 + (i % 800));
  const answer = await server.post('/v1/embeddings', { input: full });
  assert.equal(answer.status, 200);
  assert.equal(answer.body.usage.prompt_tokens, 2048);
  const refused = await server.post('/v1/embeddings', { input: [...full, 9] });
  assert.equal(refused.status, 400);
  assert.match(refused.body.error.message,
    /maximum context length is 2048 tokens.*requested 0 output tokens.*contains 2049 input tokens/);
});

test('mixed lengths side by side give what each gives alone, to the bit', async () => {
  const prompts = Array.from({ length: isSlow ? 12 : 24 }, (_, i) =>
    Array.from({ length: 1 + (i * 37) % (isSlow ? 150 : 400) }, (_, k) => 10 + (i * 131 + k * 7) % 3000));
  const alone = [];
  for (const prompt of prompts) alone.push(...await embed(server, { input: prompt }));
  const [together, ...others] = await Promise.all([
    embed(server, { input: prompts, cache_salt: 'a' }),
    ...prompts.slice(0, 12).map((prompt) => embed(server, { input: prompt, cache_salt: 'b' })),
  ]);
  assert.deepEqual(together, alone);
  assert.deepEqual(others.flat(), alone.slice(0, 12));
});

test('errors name the field and what was expected', async () => {
  const cases = [
    [{}, /Either `input` or `messages`/, 'input'],
    [{ input: [] }, /Either `input` or `messages`/, 'input'],
    [{ input: 'a', messages: [] }, /Only one of/, 'input'],
    [{ input: 7 }, /Input should be a string, a list of token ids/, 'body.input'],
    [{ input: ['a', {}] }, /body\.input\.1/, 'body.input.1'],
    [{ input: [[]] }, /cannot be empty/, null],
    [{ input: [[99999]] }, /Token id 99999 is out of vocabulary/, null],
    [{ input: 'a', encoding_format: 'hex' }, /'float', 'base64', 'bytes' or 'bytes_only'/,
      'body.encoding_format'],
    [{ input: 'a', encoding_format: 'bytes' }, /does not support encoding_format 'bytes'/,
      'encoding_format'],
    [{ input: 'a', embed_dtype: 'fp8_e4m3' }, /does not support embed_dtype/, 'embed_dtype'],
    [{ input: 'a', dimensions: 0 }, /must be greater than 0/, 'dimensions'],
    [{ input: 'a', dimensions: 385 }, /at most 384/, 'dimensions'],
    [{ input: 'a', dimensions: 'many' }, /dimensions/, 'body.dimensions'],
    [{ input: 'a', truncate_prompt_tokens: -2 }, /greater than or equal to -1/,
      'body.truncate_prompt_tokens'],
    [{ input: 'a', truncate_prompt_tokens: 0 }, /cannot be empty/, null],
    [{ input: 'a', truncate_prompt_tokens: 9999 }, /greater than max_model_len/, null],
    [{ input: 'a', use_activation: 'maybe' }, /use_activation/, 'body.use_activation'],
    [{ messages: 'hello' }, /messages/, 'body.messages'],
  ];
  for (const [body, message, param] of cases) {
    const answer = await server.post('/v1/embeddings', body);
    assert.equal(answer.status, 400, JSON.stringify(body));
    assert.match(answer.body.error.message, message);
    assert.equal(answer.body.error.param, param);
  }
  const unknown = await server.post('/v1/embeddings', { input: 'a', model: 'other' });
  assert.equal(unknown.status, 404);
  const many = await server.post('/v1/embeddings', { input: Array(16385).fill('a') });
  assert.equal(many.status, 400);
  assert.match(many.body.error.message, /at most 16384 prompts, got 16385/);
});

test('a pooling server has no routes for generating, and says which of its kind are missing', async () => {
  for (const route of ['/v1/chat/completions', '/v1/completions', '/v1/responses', '/v1/messages'])
    assert.equal((await server.post(route, {})).status, 404, route);
  for (const route of ['/pooling', '/score', '/v1/rerank', '/classify']) {
    const answer = await server.post(route, {});
    assert.equal(answer.status, 501, route);
    assert.match(answer.body.error.message, new RegExp(`does not support ${route} yet`));
  }
  const { paths } = JSON.parse((await server.get('/openapi.json')).body);
  assert.ok(paths['/v1/embeddings'] && !paths['/v1/completions']);
  assert.match(server.log, /Supported tasks: \('embed',\)/);
});

test('a client that leaves gives its place back', async () => {
  const leave = new AbortController();
  const input = Array.from({ length: 40 }, (_, i) =>
    Array.from({ length: 1500 }, (_, k) => 20 + (i * 57 + k) % 3000));
  const asked = fetch(`${server.url}/v1/embeddings`, {
    method: 'POST', headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ input }), signal: leave.signal,
  });
  await until('the requests run', 30, async () => await server.metric('vllm:num_requests_running') > 0);
  leave.abort();
  await assert.rejects(asked);
  await until('nothing runs', 30, async () => await server.metric('vllm:num_requests_running') === 0
    && await server.metric('vllm:num_requests_waiting') === 0);
  assert.equal((await embed(server, { input: 'still there' })).length, 1);
  assert.ok(await server.metric('vllm:request_success_total', 'finished_reason="abort"') > 0);
});

test('metrics count prompts, and no generated token', async () => {
  const names = ['vllm:prompt_tokens_total', 'vllm:e2e_request_latency_seconds_count'];
  const before_ = await Promise.all(names.map((name) => server.metric(name)));
  const stops = await server.metric('vllm:request_success_total', 'finished_reason="stop"');
  await embed(server, { input: [[1, 2, 3], [4, 5]] });
  assert.equal(await server.metric(names[0]), before_[0] + 5);
  assert.equal(await server.metric(names[1]), before_[1] + 2);
  assert.equal(await server.metric('vllm:request_success_total', 'finished_reason="stop"'), stops + 2);
  assert.equal(await server.metric('vllm:generation_tokens_total'), 0);
});

test('the flight recorder replays what was pooled', async () => {
  const { body } = await server.post('/debug/recording', {});
  const file = body.path;
  assert.ok(file, JSON.stringify(body));
  try {
    const replay = spawn(binary, ['replay', file], { stdio: ['ignore', 'pipe', 'pipe'] });
    let text = '';
    for (const stream of [replay.stdout, replay.stderr]) stream.on('data', (bytes) => (text += bytes));
    const [code] = await once(replay, 'close');
    assert.equal(code, 0, text);
  } finally {
    fs.unlinkSync(file);
  }
});

test('an engine that dies is replaced, and the vectors come all the same', async () => {
  const input = Array.from({ length: isSlow ? 4 : 12 }, (_, i) =>
    Array.from({ length: 400 }, (_, k) => 30 + (i * 91 + k) % 3000));
  const expected = await embed(server, { input, cache_salt: 'x' });
  const pid = Number([...server.log.matchAll(/\(EngineCore pid=(\d+)\)/g)].at(-1)[1]);
  process.kill(pid, 'SIGSTOP'); // a fast one would have answered before it dies
  const asked = embed(server, { input, cache_salt: 'y' });
  await sleep(200);
  process.kill(pid, 'SIGKILL');
  assert.deepEqual(await asked, expected);
});

test('a generating server has no embeddings', async () => {
  const on = await Server.start([]);
  try {
    assert.equal((await on.post('/v1/embeddings', { input: 'a' })).status, 404);
    assert.equal((await on.post('/score', {})).status, 404);
  } finally {
    assert.equal(await on.stop(), 0);
  }
});

/** The demo model with Sentence Transformers' files beside it, in a folder of its own. */
function sentenceTransformer(mode, modules = ['Transformer', 'Pooling', 'Normalize']) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'vllm-pooling-'));
  for (const name of fs.readdirSync(demo)) {
    if (fs.statSync(path.join(demo, name)).isFile())
      fs.symlinkSync(path.join(demo, name), path.join(dir, name));
  }
  fs.writeFileSync(path.join(dir, 'modules.json'), JSON.stringify(modules.map((type, idx) => ({
    idx, name: String(idx), path: idx === 0 ? '' : `${idx}_${type}`,
    type: `sentence_transformers.models.${type}`,
  }))));
  fs.mkdirSync(path.join(dir, '1_Pooling'));
  fs.writeFileSync(path.join(dir, '1_Pooling', 'config.json'), JSON.stringify({
    word_embedding_dimension: 384, pooling_mode_cls_token: false, [`pooling_mode_${mode}`]: true,
  }));
  return dir;
}

test('a model with a pooling module pools without being told', async () => {
  const dir = sentenceTransformer('mean_tokens', ['Transformer', 'Pooling']);
  const on = await Server.start([], { model: dir });
  try {
    assert.match(on.log, /pooling_type=MEAN, use_activation=False/);
    const answer = await on.post('/v1/embeddings', { input: 'A fox' });
    assert.ok(Math.abs(length(answer.body.data[0].embedding) - 1) > 1e-3);
  } finally {
    assert.equal(await on.stop(), 0);
    fs.rmSync(dir, { recursive: true });
  }
});

/** The fixture as embedding models are often saved: the decoder alone, without the first part of
 *  its tensors' names and without an output matrix. */
function bareDecoder() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'vllm-pooling-'));
  for (const name of fs.readdirSync(fixture))
    fs.copyFileSync(path.join(fixture, name), path.join(dir, name));
  fs.unlinkSync(path.join(dir, 'intermediates.safetensors'));
  const config = JSON.parse(fs.readFileSync(path.join(dir, 'config.json'), 'utf8'));
  fs.writeFileSync(path.join(dir, 'config.json'),
    JSON.stringify({ ...config, tie_word_embeddings: false }));
  const bytes = fs.readFileSync(path.join(fixture, 'model.safetensors'));
  const begin = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, begin).toString());
  const bare = {};
  const parts = [];
  let offset = 0;
  for (const [name, tensor] of Object.entries(header)) {
    if (name === '__metadata__' || name.startsWith('lm_head.')) continue;
    assert.ok(name.startsWith('model.'));
    const data = bytes.subarray(...tensor.data_offsets.map((at) => begin + at));
    bare[name.slice('model.'.length)] = { ...tensor, data_offsets: [offset, offset + data.length] };
    parts.push(data);
    offset += data.length;
  }
  const text = Buffer.from(JSON.stringify(bare));
  const length_ = Buffer.alloc(8);
  length_.writeBigUInt64LE(BigInt(text.length));
  fs.writeFileSync(path.join(dir, 'model.safetensors'), Buffer.concat([length_, text, ...parts]));
  return dir;
}

test('a decoder without an output matrix gives the same vectors', async () => {
  const dir = bareDecoder();
  const body = { input: [[5, 6, 7, 8], [9, 10]] };
  const vectors = [];
  for (const model of [fixture, dir]) {
    const on = await Server.start(['--runner', 'pooling'], { model });
    try {
      vectors.push(await embed(on, body));
    } finally {
      assert.equal(await on.stop(), 0);
    }
  }
  assert.deepEqual(vectors[1], vectors[0]);
  const generates = await Server.start([], { model: dir, wait: false });
  assert.notEqual(await generates.exited, 0);
  fs.rmSync(dir, { recursive: true });
});

test('a server that stops says so instead of answering in part', async () => {
  const on = await Server.start(['--runner', 'pooling', '--max-num-batched-tokens', '64', '--max-num-seqs', '2']);
  const input = Array.from({ length: 40 }, (_, i) =>
    Array.from({ length: 1500 }, (_, k) => 40 + (i * 57 + k) % 3000));
  const asked = on.post('/v1/embeddings', { input });
  await until('the requests run', 30, async () => await on.metric('vllm:num_requests_running') > 0);
  assert.equal(await on.stop(), 0);
  const answer = await asked;
  assert.equal(answer.status, 503);
  assert.match(answer.body.error.message, /stopped before all embeddings were computed/);
});

test('what cannot be pooled is refused at the start, by name', async () => {
  const dir = sentenceTransformer('max_tokens');
  const cases = [
    [demo, ['--runner', 'pooling', '--pooler-config', '{"pooling_type":"CLS"}'],
      /does not support pooling type CLS for decoders, expected LAST or MEAN/],
    [demo, ['--runner', 'pooling', '--pooler-config', '{"logit_bias":1}'],
      /--pooler-config: vllm.c does not support the key "logit_bias" yet/],
    [demo, ['--runner', 'pooling', '--pooler-config', '{"dimensions":16}'],
      /does not support matryoshka representation/],
    [demo, ['--pooler-config', '{"pooling_type":"LAST"}'], /expected --runner pooling/],
    [demo, ['--runner', 'generate', '--convert', 'embed'], /contradicts --runner generate/],
    [demo, ['--convert', 'classify'], /classify/],
    [demo, ['--hf-overrides', '{"rope_theta":1}'],
      /--hf-overrides: vllm.c does not support the key "rope_theta" yet/],
    [dir, [], /pooling type max_tokens/],
  ];
  for (const [model, args, message] of cases) {
    const on = await Server.start(args, { model, wait: false });
    assert.notEqual(await on.exited, 0);
    await until('its last words are there', 10, () => message.test(on.log));
  }
  fs.rmSync(dir, { recursive: true });
});
