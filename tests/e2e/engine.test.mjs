// The engine behind a real server: resumption under fire, memory that runs short, health that tells
// the truth, recordings that replay.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { Server, binary, demo, sleep, timeScale, until } from './server.mjs';

const name = ['--served-model-name', 'demo'];
const route = '/v1/completions';
/** For tests of a minute where nothing else runs: a hang ends, a busy machine is waited for. */
const patient = { timeout: 900_000 * timeScale };

/** The engine's pid; undefined while there is none. */
function enginePid(server) {
  const line = execFileSync('ps', ['--no-headers', '-o', 'pid,args', '--ppid', String(server.pid)], { encoding: 'utf8' })
    .split('\n').find((one) => one.includes('EngineCore'));
  return line && Number(line.trim().split(' ')[0]);
}

/** All that a client can see of an answer, whatever the chunks were. */
function seen(events) {
  assert.equal(events.at(-1), '[DONE]');
  const choices = {};
  let usage = null;
  for (const event of events.slice(0, -1)) {
    assert.equal(event.error, undefined, JSON.stringify(event));
    usage = event.usage ?? usage;
    for (const choice of event.choices) {
      const one = (choices[choice.index] ??= { text: '', tokens: [], logprobs: [], finish: null });
      assert.equal(one.finish, null, 'nothing comes after the finish');
      one.text += choice.text;
      one.tokens.push(...(choice.logprobs?.tokens ?? []));
      one.logprobs.push(...(choice.logprobs?.token_logprobs ?? []));
      one.finish = choice.finish_reason ?? null;
    }
  }
  if (usage) delete usage.prompt_tokens_details;
  return { choices, usage };
}

const stream = async (server, body) =>
  seen(await server.stream(route, { model: 'demo', stream_options: { include_usage: true }, ...body }));

test('an engine killed 20 times under 16 streams changes not a byte of any', patient, async () => {
  const server = await Server.start([...name, '--max-num-seqs', '8']);
  const bodies = Array.from({ length: 16 }, (_, i) => ({
    prompt: `Once upon a time there was a ${['fox', 'king', 'tree', 'boat'][i % 4]} ${'and '.repeat(i)}`,
    max_tokens: 150,
    ignore_eos: true,
    logprobs: 1,
    ...[
      { temperature: 0 },
      { temperature: 1, seed: i },
      { temperature: 0.9, seed: 100 + i, n: 2, top_p: 0.95 },
      { temperature: 0, frequency_penalty: 0.7, repetition_penalty: 1.1, min_tokens: 20 },
    ][i % 4],
  }));
  const undisturbed = await Promise.all(bodies.map((body) => stream(server, body)));
  for (const { usage } of undisturbed) assert.ok(usage.completion_tokens >= 150);

  let finished = false;
  let kills = 0;
  let last;
  const killer = (async () => {
    while (kills < 20 || !finished) {
      const pid = enginePid(server);
      if (kills < 20 && pid && pid !== last && (await server.healthy())) {
        await sleep(20 + ((kills * 37) % 120)); // somewhere in its work
        process.kill(pid, 'SIGKILL');
        last = pid;
        kills++;
      }
      await sleep(10);
    }
  })();
  const rounds = [];
  do { // as many rounds as the kills need
    rounds.push(await Promise.all(bodies.map((body) => stream(server, body))));
  } while (kills < 20);
  finished = true;
  await killer;
  for (const round of rounds) assert.deepEqual(round, undisturbed);
  await until('all blocks are free', 10, async () => (await server.healthy()) &&
    (await server.metric('vllm:kv_cache_usage_perc')) === 0);
  assert.equal(await server.stop(), 0);
});

test('tokens are neither repeated nor lost by preemption (P28)', patient, async () => {
  const body = (i) => ({ prompt: Array(32).fill(300 + i), max_tokens: 96, ignore_eos: true, temperature: 0, logprobs: 1 });
  const roomy = await Server.start(name);
  const alone = [];
  for (let i = 0; i < 4; i++) alone.push(await stream(roomy, body(i)));
  await roomy.stop();
  const small = await Server.start([...name, '--num-gpu-blocks-override', '20', '--max-model-len', '160', '--block-size', '16']);
  const together = await Promise.all([0, 1, 2, 3].map((i) => stream(small, body(i))));
  assert.deepEqual(together, alone);
  for (const one of together) {
    assert.equal(one.choices[0].tokens.length, 96);
    assert.equal(one.usage.completion_tokens, 96);
    assert.equal(one.usage.prompt_tokens, 32);
  }
  assert.ok((await small.metric('vllm:num_preemptions_total')) > 0);
  assert.equal(await small.metric('vllm:time_to_first_token_seconds_count'), 4);
  assert.equal(await small.metric('vllm:kv_cache_usage_perc'), 0);
  await small.stop();
});

const sentences = (i) => `The ${['old fox', 'tall king', 'green tree', 'small boat'][i]} went to the market and bought ` +
  `${i + 3} baskets of red apples, ${i + 11} loaves of bread and a very long piece of string for its friends at home. `;
/** Text of so many characters that comes late in `text`, and there for the first time. */
function lateText(text, length) {
  for (let at = Math.floor(text.length * 0.75); at + length <= text.length; at++) {
    const late = text.slice(at, at + length);
    if (text.indexOf(late) === at) return late;
  }
  throw new Error(`nothing new comes late in ${text}`);
}
const constrained = [
  // A stop string over several tokens, which comes late; with and without a look at it.
  ['stop strings', (i, text) => ({
    prompt: sentences(i), max_tokens: 96, ignore_eos: true, temperature: 0.7, seed: 40 + i, logprobs: 1,
    ...(text && { stop: [lateText(text, 6 + i), '\u0001never'], include_stop_str_in_output: i % 2 === 0 }),
  })],
  // Choices that share a long beginning, so that the automaton has to be where the text is.
  ['structured_outputs.choice', (i) => ({
    prompt: Array(32).fill(300 + i), max_tokens: 200, temperature: 1, seed: 50 + i, logprobs: 1,
    structured_outputs: { choice: ['north', 'south', 'south-east', `west ${i}`].map((end) => sentences(i) + end) },
  })],
];
for (const [what, make] of constrained) {
  test(`preemption restores the state of ${what} (P28)`, patient, async () => {
    const roomy = await Server.start(name);
    const bodies = [], alone = [];
    for (let i = 0; i < 4; i++) {
      const free = what === 'stop strings' ? (await stream(roomy, make(i))).choices[0].text : null;
      bodies.push(make(i, free));
      alone.push(await stream(roomy, bodies[i]));
    }
    await roomy.stop();
    for (const [i, { choices: [choice] }] of alone.map((one) => ({ choices: [one.choices[0]] })).entries()) {
      assert.equal(choice.finish, 'stop');
      assert.ok(choice.tokens.length > 48, `${choice.tokens.length} tokens are enough to be preempted amid`);
      if (bodies[i].structured_outputs) assert.ok(bodies[i].structured_outputs.choice.includes(choice.text), choice.text);
      else assert.equal(choice.text.includes(bodies[i].stop[0]), bodies[i].include_stop_str_in_output);
    }
    const small = await Server.start([...name, '--num-gpu-blocks-override', '20', '--max-model-len', '256', '--block-size', '16']);
    try {
      const before = await small.metric('vllm:num_preemptions_total');
      assert.deepEqual(await Promise.all(bodies.map((body) => stream(small, body))), alone);
      assert.ok((await small.metric('vllm:num_preemptions_total')) > before, 'something was preempted');
      // Unstreamed the same.
      const whole = await Promise.all(bodies.map((body) => small.post(route, { model: 'demo', ...body })));
      for (const [i, { status, body }] of whole.entries()) {
        assert.equal(status, 200);
        assert.equal(body.choices[0].text, alone[i].choices[0].text);
        assert.equal(body.choices[0].finish_reason, 'stop');
        assert.equal(body.usage.completion_tokens, alone[i].usage.completion_tokens);
      }
      // What ends a request at a stop string is not the engine, which hears of it a moment later.
      await until('every block is free', 10, async () => (await small.metric('vllm:kv_cache_usage_perc')) === 0);
    } finally {
      await small.stop();
    }
  });
}

test('prompt log-probabilities with a warm cache and small chunks are the same (P07)', async () => {
  const server = await Server.start([...name, '--max-num-batched-tokens', '32', '--max-num-seqs', '4', '--block-size', '16']);
  const ids = Array.from({ length: 83 }, (_, i) => 300 + ((i * 7) % 50));
  const ask = (prompt) => server.post(route, { model: 'demo', prompt, echo: true, logprobs: 2, max_tokens: 1, temperature: 0 });
  const answers = [await ask(ids), await ask(ids), await ask([...ids.slice(0, -1), 999])];
  for (const { status, body } of answers) {
    assert.equal(status, 200);
    const { tokens, token_logprobs: values } = body.choices[0].logprobs;
    assert.equal(tokens.length, 84);
    assert.equal(values[0], null);
    assert.ok(values.slice(1).every((value) => Number.isFinite(value)));
  }
  const [first, second, third] = answers.map(({ body }) => body.choices[0].logprobs.token_logprobs);
  assert.deepEqual(second, first);
  assert.deepEqual(third.slice(0, 82), first.slice(0, 82));
  await server.stop();
});

test('a prompt that is cached as a whole computes its last block again (P30)', async () => {
  const server = await Server.start([...name, '--block-size', '16', '--enable-prompt-tokens-details']);
  let next = 300;
  for (const [length, cached] of [[64, 48], [63, 48], [65, 64], [16, 0], [15, 0]]) {
    const prompt = Array.from({ length }, (_, i) => next + (i % 11));
    next += 100;
    const ask = () => server.post(route, { model: 'demo', prompt, max_tokens: 4, temperature: 0, ignore_eos: true });
    const [first, second] = [await ask(), await ask()];
    assert.equal(second.body.usage.prompt_tokens_details?.cached_tokens ?? 0, cached, `${length} tokens`);
    assert.equal(second.body.usage.prompt_tokens, length);
    assert.equal(second.body.choices[0].text, first.body.choices[0].text);
    assert.equal(await server.metric('vllm:kv_cache_usage_perc'), 0);
  }
  // The next turn of a conversation finds the answer's blocks too, but for its last token's.
  const turn = (prompt, max_tokens) =>
    server.post(route, { model: 'demo', prompt, max_tokens, temperature: 0, ignore_eos: true, return_token_ids: true });
  const prompt = Array.from({ length: 40 }, (_, i) => 1200 + i);
  const { body: first } = await turn(prompt, 25);
  const { body: second } = await turn([...prompt, ...first.choices[0].token_ids, 1300], 4);
  assert.equal(second.usage.prompt_tokens, 66);
  assert.equal(second.usage.prompt_tokens_details.cached_tokens, 64);
  const fresh = await Server.start([...name, '--block-size', '16', '--no-enable-prefix-caching']);
  const { body: computed } = await fresh.post(route, { model: 'demo', prompt: [...prompt, ...first.choices[0].token_ids, 1300],
    max_tokens: 4, temperature: 0, ignore_eos: true });
  await fresh.stop();
  assert.equal(second.choices[0].text, computed.choices[0].text);
  await server.stop();
});

test('a start that cannot hold one request says what would fit, and that fits (P31)', patient, async () => {
  // 16 blocks of 16 tokens: 256 tokens, of float32 on a CPU and of two bytes on a GPU.
  const bytes = 16 * 16 * (process.env.VLLM_TARGET_DEVICE === 'cuda' ? 4096 : 8192);
  const flags = (length) => [...name, '--kv-cache-memory-bytes', String(bytes), '--block-size', '16', '--max-model-len', String(length)];
  const env = { VLLM_CPU_KVCACHE_SPACE: '' }; // it would win over the flag
  const fits = await Server.start(flags(256), { env });
  assert.equal(await fits.stop(), 0);
  for (const length of [257, 2048]) {
    const refused = await Server.start(flags(length), { wait: false, env });
    assert.notEqual(await refused.exited, 0);
    assert.match(refused.log, /256/, refused.log.slice(-500));
  }
  const unset = flags(0).slice(0, -2); // the model's own 2048
  const refused = await Server.start(unset, { wait: false, env });
  assert.notEqual(await refused.exited, 0);
  assert.match(refused.log, /2048.*\b256\b/s, refused.log.slice(-500));
  for (const few of ['0', String(bytes / 16 - 1)]) {
    const none = await Server.start([...name, '--kv-cache-memory-bytes', few, '--block-size', '16'], { wait: false, env });
    assert.notEqual(await none.exited, 0);
    assert.match(none.log, /kv-cache-memory-bytes/);
  }
});

test('a client that leaves in the middle of a shared prefill hands it to the next choice (P29)', async () => {
  const server = await Server.start([...name, '--max-num-batched-tokens', '64', '--max-num-seqs', '4']);
  const prompt = Array.from({ length: 1500 }, (_, i) => 300 + (i % 90));
  for (let i = 0; i < 5; i++) {
    const controller = new AbortController();
    const gone = server.stream(route, { model: 'demo', prompt, max_tokens: 400, ignore_eos: true, n: 3 }, { signal: controller.signal }).catch(() => 'gone');
    const stays = stream(server, { prompt, max_tokens: 3, ignore_eos: true });
    await sleep(15 * i);
    controller.abort();
    assert.equal(await gone, 'gone');
    assert.equal((await stays).usage.completion_tokens, 3);
  }
  await until('everything is free', 3, async () => (await server.metric('vllm:num_requests_running')) === 0 &&
    (await server.metric('vllm:kv_cache_usage_perc')) === 0);
  await server.stop();
});

test('a dead engine is 503 with Retry-After until the next one is ready, and nothing hangs (P37)', async () => {
  const server = await Server.start(name);
  const first = enginePid(server);
  process.kill(first, 'SIGKILL');
  await until('health says so, or the next one is there', 5, async () => {
    const pid = enginePid(server);
    return !(await server.healthy()) || (pid !== undefined && pid !== first);
  });
  const answer = await server.post(route, { model: 'demo', prompt: 'x', max_tokens: 1 });
  if (answer.status === 503) assert.ok(Number(answer.headers.get('retry-after')) >= 1);
  else assert.equal(answer.status, 200);
  assert.equal((await server.get('/metrics')).status, 200);
  await until('healthy again', 10, () => server.healthy());
  await server.stop();
});

test('health is 200 all through the prefill of 100,000 tokens', patient, async () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'vllm-long-'));
  try {
    const config = JSON.parse(readFileSync(path.join(demo, 'config.json'), 'utf8'));
    Object.assign(config, { hidden_size: 64, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 1,
      num_key_value_heads: 1, head_dim: 64, max_position_embeddings: 131072, max_window_layers: 1 });
    writeFileSync(path.join(dir, 'config.json'), JSON.stringify(config));
    copyFileSync(path.join(demo, 'tokenizer.json'), path.join(dir, 'tokenizer.json'));
    const tokenizer = JSON.parse(readFileSync(path.join(demo, 'tokenizer_config.json'), 'utf8'));
    writeFileSync(path.join(dir, 'tokenizer_config.json'), JSON.stringify({ ...tokenizer, model_max_length: 131072 }));
    const server = await Server.start([...name, '--load-format', 'dummy', '--max-model-len', '131072'], { model: dir });
    const prompt = Array.from({ length: 100_000 }, (_, i) => 300 + (i % 3000));
    const controller = new AbortController();
    let done = false;
    const answer = server.stream(route, { model: 'demo', prompt, max_tokens: 1, ignore_eos: true }, { signal: controller.signal })
      .catch(() => null).finally(() => (done = true));
    await until('it runs', 20, async () => done || (await server.metric('vllm:num_requests_running')) === 1);
    const end = Date.now() + 25_000; // five times the limit of a stall
    for (let polls = 0; !done && (Date.now() < end || polls < 50); polls++) {
      assert.ok(await server.healthy(), 'healthy in mid-prefill');
      await sleep(100);
    }
    controller.abort();
    await answer;
    await until('it is gone', 10, async () => (await server.metric('vllm:num_requests_running')) === 0);
    assert.equal(await server.stop(), 0);
  } finally {
    rmSync(dir, { recursive: true });
  }
});

test('a prompt that can never run is refused with its numbers and blocks nobody', patient, async () => {
  const server = await Server.start([...name, '--no-enable-chunked-prefill', '--max-num-batched-tokens', '2048', '--max-model-len', '2048']);
  const answer = await server.post(route, { model: 'demo', prompt: Array(2048).fill(300), max_tokens: 1 });
  assert.equal(answer.status, 400);
  assert.match(answer.body.error.message, /2048/);
  assert.equal((await server.post(route, { model: 'demo', prompt: 'x', max_tokens: 1 })).status, 200);
  await server.stop();
});

test('a full queue is 503 with a Retry-After from the measured pace', async () => {
  const server = await Server.start([...name, '--max-num-queued-reqs', '3', '--max-num-seqs', '2']);
  const busy = [0, 1, 2].map(() => stream(server, { prompt: 'x', max_tokens: 400, ignore_eos: true }));
  await until('they are there', 5, async () => (await server.metric('vllm:num_requests_running')) === 2);
  const answer = await server.post(route, { model: 'demo', prompt: 'x', max_tokens: 1 });
  assert.equal(answer.status, 503);
  assert.equal(answer.body.error.type, 'Service Unavailable');
  const seconds = Number(answer.headers.get('retry-after'));
  assert.ok(seconds >= 1 && seconds <= 120);
  await Promise.all(busy);
  await server.stop();
});

test('a request tells where its time went, to those with the key', async () => {
  const key = { authorization: 'Bearer secret' };
  const server = await Server.start([...name, '--api-key', 'secret', '--max-num-batched-tokens', '64', '--max-num-seqs', '4']);
  const body = { model: 'demo', prompt: Array.from({ length: 200 }, (_, i) => 300 + i), max_tokens: 5, ignore_eos: true, n: 3 };
  const { body: answer } = await server.post(route, body, key);
  assert.equal((await server.get(`/debug/requests/${answer.id}`)).status, 401);
  assert.equal((await server.get('/debug/requests/cmpl-unknown', key)).status, 404);
  const { status, body: text } = await server.get(`/debug/requests/${answer.id}`, key);
  assert.equal(status, 200);
  const { id, choices } = JSON.parse(text);
  assert.equal(id, answer.id);
  assert.equal(choices.length, 3);
  for (const choice of choices) {
    assert.equal(choice.state, 'finished');
    assert.equal(choice.finish_reason, 'length');
    assert.equal(choice.prompt_tokens, 200);
    assert.equal(choice.decode.output_tokens, 5);
    assert.ok(choice.decode.tokens_per_second > 0);
    assert.ok(choice.total_ms >= choice.queue.ms);
  }
  assert.equal(choices[0].prefill.cached_tokens, 0);
  assert.equal(choices[0].prefill.num_chunks, 4);
  // The others waited for the first one's blocks and computed nothing twice.
  for (const choice of choices.slice(1)) {
    assert.ok(choice.prefill.cached_tokens >= 192 - 32, `${choice.prefill.cached_tokens} cached`);
    assert.ok(choice.queue.held_steps.prefix_being_computed > 0 || choice.queue.held_steps.token_budget_used > 0 || choice.queue.ms > 0);
  }
  await server.stop();
});

test('a recording of a busy engine replays to the same decisions', patient, async () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'vllm-recording-'));
  const replay = (file) => spawnSync(binary, ['replay', file], { encoding: 'utf8' });
  try {
    const server = await Server.start([...name, '--num-gpu-blocks-override', '40', '--max-model-len', '256', '--block-size', '16', '--max-num-seqs', '6'],
      { env: { VLLM_RECORDING_DIR: dir } });
    const bodies = Array.from({ length: 24 }, (_, i) => ({ model: 'demo', prompt: `Once ${'a '.repeat((i * 5) % 60)}`, max_tokens: 60 + i, n: 1 + (i % 3), temperature: 1, seed: i }));
    const controllers = bodies.map(() => new AbortController());
    const streams = bodies.map((body, i) => server.stream(route, body, { signal: controllers[i].signal }).catch(() => null));
    await sleep(300);
    for (let i = 0; i < 24; i += 5) controllers[i].abort();
    const early = await server.post('/debug/recording', {});
    assert.equal(early.status, 200);
    await Promise.all(streams);
    process.kill(enginePid(server), 'SIGUSR2');
    const late = await until('the signal is obeyed', 5, () => readdirSync(dir).find((file) => !early.body.path.endsWith(file)));
    await until('it is written to its end', 5, () => replay(path.join(dir, late)).status === 0);
    for (const file of [early.body.path, path.join(dir, late)]) {
      const { status, stdout, stderr } = replay(file);
      assert.equal(status, 0, stdout + stderr);
      assert.match(stdout, /every decision is the same/);
      assert.match(stdout, /requests arrived/);
    }
    const whole = readFileSync(path.join(dir, late));
    assert.ok(!whole.includes('Once'), 'no text');
    writeFileSync(path.join(dir, 'cut'), whole.subarray(0, whole.length - 3));
    assert.match(replay(path.join(dir, 'cut')).stdout, /ends within a record/);
    const changed = Buffer.from(whole);
    changed[changed.length - 400] ^= 0x10;
    writeFileSync(path.join(dir, 'changed'), changed);
    assert.ok([0, 1, 2].includes(replay(path.join(dir, 'changed')).status));
    assert.equal(replay(path.join(dir, 'absent')).status, 2);
    assert.equal(replay(path.join(demo, 'config.json')).status, 2);
    process.kill(enginePid(server), 'SIGABRT'); // as a failed check does
    const fatal = await until('it leaves its last decisions', 5, () => readdirSync(dir).find((file) => file.includes('fatal')));
    await until('a new engine is there', 10, () => server.healthy());
    await until('its last decisions replay', 5, () => replay(path.join(dir, fatal)).status === 0);
    assert.equal(await server.stop(), 0);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
