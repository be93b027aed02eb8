// /metrics and the log: what adds up, what outlives a crash, what Prometheus itself reads.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Server, freePort, lacks, root, sleep, startProgram, until } from './server.mjs';

const monitoring = path.join(root, 'monitoring');
const prompt = 'Once upon a time there was a small dragon who';

/** /metrics as {name: [{labels, value}]} and {name: type}. */
async function scrape(server) {
  const { status, headers, body } = await server.get('/metrics');
  assert.equal(status, 200);
  assert.match(headers.get('content-type'), /^text\/plain; version=0\.0\.4; charset=utf-8$/);
  const samples = {};
  const types = {};
  for (const line of body.split('\n')) {
    const type = /^# TYPE (\S+) (\S+)$/.exec(line);
    if (type) types[type[1]] = type[2];
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    (samples[match[1]] ??= []).push({ labels, value: Number(match[3]) });
  }
  return { samples, types, body };
}

function total({ samples }, name, labels = {}) {
  assert.ok(samples[name], `no series ${name}`);
  return samples[name]
    .filter((s) => Object.entries(labels).every(([key, value]) => s.labels[key] === value))
    .reduce((sum, s) => sum + s.value, 0);
}

const complete = (server, body) => server.post('/v1/completions', { prompt, max_tokens: 8, ignore_eos: true, temperature: 0, ...body });

/** Opens a stream and leaves it open; returns {close, response}. */
async function openStream(server, body = {}) {
  const controller = new AbortController();
  const response = await fetch(`${server.url}/v1/completions`, {
    method: 'POST', headers: { 'content-type': 'application/json' }, signal: controller.signal,
    body: JSON.stringify({ prompt, stream: true, ignore_eos: true, max_tokens: 1500, ...body }),
  });
  await response.body.getReader().read();
  return { close: () => controller.abort() };
}

const perRequest = [
  'vllm:e2e_request_latency_seconds', 'vllm:request_queue_time_seconds', 'vllm:request_prefill_time_seconds',
  'vllm:request_decode_time_seconds', 'vllm:request_inference_time_seconds', 'vllm:request_time_per_output_token_seconds',
  'vllm:request_prompt_tokens', 'vllm:request_generation_tokens', 'vllm:request_params_max_tokens',
  'vllm:request_prefill_kv_computed_tokens',
];

/** What must hold whenever nothing is in transit. */
function expectInvariants(page) {
  const finished = total(page, 'vllm:request_success_total');
  const inside = total(page, 'vllm:num_requests_running') + total(page, 'vllm:num_requests_waiting');
  assert.equal(total(page, 'vllm_c:requests_received_total'),
    finished + total(page, 'vllm_c:requests_lost_total') + inside, 'requests in = finished + lost + running + waiting');
  for (const name of perRequest)
    assert.equal(total(page, `${name}_count`), finished, name);
  const bySource = total(page, 'vllm:prompt_tokens_by_source_total');
  assert.equal(total(page, 'vllm:prompt_tokens_total'), bySource);
  assert.equal(total(page, 'vllm:prompt_tokens_cached_total'),
    total(page, 'vllm:prompt_tokens_by_source_total', { source: 'local_cache_hit' }));
  assert.equal(total(page, 'vllm:num_requests_waiting_by_reason'), total(page, 'vllm:num_requests_waiting'));
  assert.equal(total(page, 'vllm:iteration_tokens_total_count'), total(page, 'vllm_c:engine_steps_total'));
  for (const [name, type] of Object.entries(page.types)) {
    if (type !== 'histogram') continue;
    const series = {};
    for (const { labels, value } of page.samples[`${name}_bucket`] ?? []) {
      const { le, ...rest } = labels;
      (series[JSON.stringify(rest)] ??= []).push([Number(le === '+Inf' ? Infinity : le), value]);
    }
    for (const [labels, buckets] of Object.entries(series)) {
      buckets.forEach(([le, value], i) => assert.ok(i === 0 || (le > buckets[i - 1][0] && value >= buckets[i - 1][1]), `${name} ${labels}`));
      const count = page.samples[`${name}_count`].find((s) => JSON.stringify(s.labels) === labels);
      assert.equal(buckets.at(-1)[1], count.value, `${name}: +Inf and count`);
    }
  }
}

/** Counters and histogram counts that have gone back between two pages. */
function goneBack(earlier, later) {
  const isCounter = (name) => later.types[name] === 'counter' || /_(bucket|count)$/.test(name);
  return Object.keys(earlier.samples).filter(isCounter).filter((name) =>
    earlier.samples[name].some(({ labels, value }) => {
      const now = later.samples[name]?.find((s) => JSON.stringify(s.labels) === JSON.stringify(labels));
      return !(now?.value >= value);
    }));
}

let server;
before(async () => { server = await Server.start(['--max-num-seqs', '4']); });
after(() => server?.stop());

test('an idle server shows every series, at zero', async () => {
  const page = await scrape(server);
  expectInvariants(page);
  assert.equal(total(page, 'vllm_c:requests_received_total'), 0);
  assert.equal(page.samples['vllm:request_success_total'].length, 5);
  for (const name of ['vllm:num_requests_running', 'vllm:kv_cache_usage_perc', 'vllm:generation_tokens_total',
    'vllm:prefix_cache_queries_total', 'vllm:external_prefix_cache_hits_total', 'vllm:mm_cache_queries_total',
    'vllm:time_to_first_token_seconds_count', 'vllm:inter_token_latency_seconds_count'])
    assert.equal(total(page, name), 0, name);
  assert.equal(total(page, 'vllm_c:engine_healthy'), 1);
  assert.equal(total(page, 'vllm_c:engine_starts_total'), 1);
  const processes = page.samples['vllm_c:process_resident_memory_bytes'];
  assert.deepEqual(processes.map((s) => s.labels.process), ['Launcher', 'EngineCore', 'APIServer']);
  assert.ok(processes.every((s) => s.value > 1e6));
  for (const { labels } of Object.entries(page.samples).filter(([name]) => name.startsWith('vllm:num_requests')).flatMap(([, s]) => s))
    assert.equal(labels.engine, '0');
});

test('counters and histograms count what was asked', async () => {
  const earlier = await scrape(server);
  const answers = await Promise.all(Array.from({ length: 6 }, (_, i) => complete(server, { max_tokens: 3 + i, n: 1 })));
  const usage = answers.map((a) => a.body.usage);
  await complete(server, { n: 2, temperature: 1, max_tokens: 5 });
  const refused = await complete(server, { max_tokens: -1 });
  assert.equal(refused.status, 400);
  const page = await until('nothing runs', 5, async () => {
    const now = await scrape(server);
    return total(now, 'vllm:num_requests_running') === 0 && now;
  });
  expectInvariants(page);
  assert.deepEqual(goneBack(earlier, page), []);
  const sum = (key) => usage.reduce((all, u) => all + u[key], 0);
  assert.equal(total(page, 'vllm:generation_tokens_total'), sum('completion_tokens') + 10);
  assert.equal(total(page, 'vllm:prompt_tokens_total'), sum('prompt_tokens') + 2 * usage[0].prompt_tokens);
  assert.equal(total(page, 'vllm:request_success_total', { finished_reason: 'length' }), 8);
  assert.equal(total(page, 'vllm:time_to_first_token_seconds_count'), 8);
  assert.equal(total(page, 'vllm:inter_token_latency_seconds_count'), sum('completion_tokens') + 10 - 8);
  assert.equal(total(page, 'vllm:request_params_n_sum'), 6 + 2);
  assert.equal(total(page, 'vllm:request_params_n_count'), 7);
  assert.equal(total(page, 'http_requests_total', { status: '4xx' }), 1);
  const phases = page.samples['vllm_c:step_seconds_total'];
  assert.deepEqual(phases.map((s) => s.labels.phase), ['schedule', 'execute', 'update', 'send']);
  assert.ok(phases.every((s) => s.value > 0));
  assert.ok(phases[1].value < 60);
});

test('gauges follow running, waiting and aborted requests, and come back to zero', async () => {
  const earlier = await scrape(server);
  const streams = await Promise.all(Array.from({ length: 4 }, () => openStream(server)));
  const late = fetch(`${server.url}/v1/completions`, {
    method: 'POST', headers: { 'content-type': 'application/json' }, signal: AbortSignal.timeout(1500),
    body: JSON.stringify({ prompt, max_tokens: 1500, ignore_eos: true }),
  }).catch(() => 'aborted while it waited');
  const busy = await until('4 run and 1 waits', 30, async () => {
    const page = await scrape(server);
    return total(page, 'vllm:num_requests_running') === 4 && total(page, 'vllm:num_requests_waiting') === 1 && page;
  });
  assert.ok(total(busy, 'vllm:kv_cache_usage_perc') > 0);
  expectInvariants(busy);
  for (const stream of streams) stream.close();
  await late;
  const idle = await until('all is quiet', 30, async () => {
    const page = await scrape(server);
    return total(page, 'vllm:num_requests_running') === 0 && total(page, 'vllm:num_requests_waiting') === 0 && page;
  });
  expectInvariants(idle);
  assert.equal(total(idle, 'vllm:kv_cache_usage_perc'), 0);
  const aborted = (page) => total(page, 'vllm:request_success_total', { finished_reason: 'abort' });
  const ended = (page) => total(page, 'vllm:request_success_total');
  assert.equal(ended(idle) - ended(earlier), 5);
  assert.ok(aborted(idle) - aborted(earlier) >= 1, 'a busy machine may let some end by themselves, not all');
  await sleep(300);
  const later = await scrape(server);
  assert.equal(total(later, 'vllm:num_requests_running'), 0);
  assert.deepEqual(goneBack(idle, later), []);
});

test('several API servers show one sum, and counters outlive every process', async () => {
  const many = await Server.start(['--api-server-count', '2', '--max-num-seqs', '16', '--shutdown-timeout', '0']);
  try {
    await Promise.all(Array.from({ length: 16 }, () => complete(many)));
    let earlier = await scrape(many);
    expectInvariants(earlier);
    assert.equal(total(earlier, 'vllm:request_success_total'), 16);
    // Connections are new each time: both servers answer, and say the same.
    for (let i = 0; i < 8; i++) {
      const response = await new Promise((resolve, reject) => {
        let text = '';
        const socket = net.connect(many.port, '127.0.0.1', () => socket.write('GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'));
        socket.on('data', (bytes) => (text += bytes)).on('end', () => resolve(text)).on('error', reject);
      });
      assert.match(response, /vllm:request_success_total\{[^}]*finished_reason="length"\} 16\.0/);
      assert.doesNotMatch(response, /^process_cpu_seconds_total/m);
    }
    const pids = (page) => page.samples['vllm_c:process_resident_memory_bytes'].map((s) => s.labels.process);
    assert.deepEqual(pids(earlier), ['Launcher', 'EngineCore', 'ApiServer_0', 'ApiServer_1']);

    const tree = spawnSync('ps', ['--no-headers', '-o', 'pid,args', '--ppid', String(many.pid)], { encoding: 'utf8' }).stdout;
    const pidOf = (what) => Number(new RegExp(`^\\s*(\\d+) .*${what}`, 'm').exec(tree)[1]);
    process.kill(pidOf('EngineCore'), 'SIGKILL');
    await until('the engine is back', 20, async () =>
      total(await scrape(many), 'vllm_c:engine_starts_total') === 2 && many.healthy());
    await complete(many);
    let later = await scrape(many);
    assert.deepEqual(goneBack(earlier, later), []);
    expectInvariants(later);

    // An API server that dies takes its requests with it; they are counted as lost.
    earlier = later;
    const streams = await Promise.all(Array.from({ length: 8 }, () => openStream(many)));
    process.kill(pidOf('APIServer 0'), 'SIGKILL');
    process.kill(pidOf('APIServer 1'), 'SIGKILL');
    await until('both are back', 20, async () => {
      try {
        later = await scrape(many);
        return later.samples['vllm_c:process_resident_memory_bytes'].length === 4 && total(later, 'vllm:num_requests_running') === 0
          && total(later, 'vllm_c:requests_lost_total') === 8;
      } catch {
        return false;
      }
    });
    for (const stream of streams) stream.close();
    assert.deepEqual(goneBack(earlier, later), []);
    expectInvariants(later);
  } finally {
    await many.stop();
  }
});

test('without statistics there are no series of vLLM and ours', async () => {
  const silent = await Server.start(['--disable-log-stats']);
  try {
    await complete(silent);
    assert.doesNotMatch((await scrape(silent)).body, /^(# \w+ )?vllm(_c)?:/m);
  } finally {
    await silent.stop();
  }
});

test('answers and the log tell how long a request took, when asked', async () => {
  const talkative = await Server.start(['--enable-per-request-metrics', '--enable-log-request-timings', '--enable-log-requests', '--log-format', 'json']);
  try {
    const { body } = await complete(talkative, { max_tokens: 20 });
    const keys = ['time_to_first_token_ms', 'generation_time_ms', 'queue_time_ms', 'mean_itl_ms', 'tokens_per_second'];
    assert.deepEqual(Object.keys(body.metrics), keys);
    assert.ok(keys.every((key) => Number.isFinite(body.metrics[key]) && body.metrics[key] >= 0));
    assert.ok(Math.abs(body.metrics.generation_time_ms / 19 - body.metrics.mean_itl_ms) < 1e-6);
    assert.ok(body.metrics.tokens_per_second > 0);
    const chat = { messages: [{ role: 'user', content: 'Hi' }], max_tokens: 4 };
    const whole = await talkative.post('/v1/chat/completions', { ...chat, n: 2, temperature: 1 });
    assert.equal(whole.body.metrics, null, 'several choices have no one timing');
    const events = await talkative.stream('/v1/chat/completions', { ...chat, stream_options: { include_usage: true } });
    assert.deepEqual(Object.keys(events.at(-2).metrics), keys);
    assert.equal(events.at(-2).choices.length, 0);
    assert.equal((await complete(server)).body.metrics, null, 'only when asked');
    await until('the log has them', 5, () => (talkative.log.match(/Finished request/g) ?? []).length === 4);
  } finally {
    assert.equal(await talkative.stop(), 0);
  }
  const lines = talkative.log.trim().split('\n').map((line) => JSON.parse(line));
  for (const line of lines) {
    assert.deepEqual(Object.keys(line), ['time', 'level', 'process', 'pid', 'file', 'line', 'message']);
    assert.ok(Math.abs(Date.parse(line.time) - Date.now()) < 120_000);
  }
  const processes = new Set(lines.map((line) => line.process));
  assert.deepEqual([...processes].sort(), ['APIServer', 'EngineCore', 'Launcher']);
  const messages = lines.map((line) => line.message);
  assert.ok(messages.some((m) => /"POST \/v1\/completions HTTP\/1\.1" 200 OK$/.test(m)), 'the access log');
  assert.ok(messages.some((m) => /^Received request cmpl-/.test(m)));
  const finished = messages.find((m) => /^Finished request cmpl-/.test(m));
  assert.match(finished, /finish_reason: length, num_prompt_tokens: \d+, num_cached_tokens: \d+, num_generation_tokens: 20, queue: [\d.]+ s, prefill: [\d.]+ s, decode: [\d.]+ s, e2e: [\d.]+ s, mean ITL: [\d.]+ ms, [\d.]+ tokens\/s$/);
});

test('start-up facts come in the order that log readers know', async () => {
  await complete(server);
  assert.doesNotMatch(server.log, /Received request|Finished request/);
  let at = -1;
  for (const fact of [
    /vLLM server version \d+\.\d+\.\d+/, /non-default args: \{/, /Resolved architecture: Qwen3ForCausalLM/,
    /Using max model len 2048/, /Chunked prefill is enabled with max_num_batched_tokens=\d+\./,
    /Initializing a V1 LLM engine \(v[\d.]+\) with config: /, /Loading weights took [\d.]+ seconds/,
    /Model loading took [\d.]+ GiB and [\d.]+ seconds/, /Available KV cache memory: [\d.]+ GiB/,
    /GPU KV cache size: [\d,]+ tokens/, /Maximum concurrency for 2,048 tokens per request: [\d.]+x/,
    /init engine \(profile, create kv cache, warmup model\) took [\d.]+ s/, /Starting vLLM server on http/,
    /Application startup complete\./,
  ]) {
    const found = server.log.search(fact);
    assert.ok(found > at, `${fact} is ${found < 0 ? 'missing' : 'out of order'}\n${server.log}`);
    at = found;
  }
});

test('the line of statistics comes once more when the traffic ends, then not', async () => {
  const quick = await Server.start([], { env: { VLLM_LOG_STATS_INTERVAL: '0.3' } });
  try {
    await complete(quick, { max_tokens: 40 });
    const line = /Engine 000: Avg prompt throughput: [\d.]+ tokens\/s, Avg generation throughput: [\d.]+ tokens\/s, Running: \d+ reqs, Waiting: \d+ reqs, GPU KV cache usage: [\d.]+%, Prefix cache hit rate: [\d.]+%/g;
    const busy = /Avg generation throughput: (?!0\.0)/;
    await until('a busy line and an idle one', 5, () => {
      const lines = quick.log.match(line) ?? [];
      return lines.some((l) => busy.test(l)) && !busy.test(lines.at(-1));
    });
    await sleep(400);
    const count = quick.log.match(line).length;
    await sleep(1000);
    assert.equal(quick.log.match(line).length, count);
  } finally {
    await quick.stop();
  }
});

test('promtool finds nothing but the names that vLLM chose', async (t) => {
  if (lacks(t, 'promtool')) return;
  await complete(server);
  const { body } = await scrape(server);
  const result = spawnSync('promtool', ['check', 'metrics'], { input: body, encoding: 'utf8' });
  const complaints = (result.stdout + result.stderr).trim().split('\n').filter((line) =>
    line && !/^vllm(_c)?:\S+ metric names should not contain ':'$/.test(line)
    && line !== 'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix');
  assert.deepEqual(complaints, []);
});

/** What /metrics must show line by line: type, labels beside engine and model_name, bucket bounds. */
const reference = (() => {
  const numbers = (text) => text.split(' ').map(Number);
  const ttft = numbers('0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560');
  const gaps = numbers('0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80');
  const seconds = numbers('0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680');
  const tokens = numbers('1 2 5 10 20 50 100 200 500 1000 2000'); // up to max_model_len, 2048
  const gauge = (labels = {}) => ({ type: 'gauge', labels });
  const counter = (labels = {}) => ({ type: 'counter', labels });
  const histogram = (buckets) => ({ type: 'histogram', labels: {}, buckets });
  return {
    num_requests_running: gauge(), num_requests_waiting: gauge(), kv_cache_usage_perc: gauge(),
    num_requests_waiting_by_reason: gauge({ reason: ['capacity', 'deferred'] }),
    engine_sleep_state: gauge({ sleep_state: ['awake', 'weights_offloaded', 'discard_all'] }),
    prefix_cache_queries: counter(), prefix_cache_hits: counter(), external_prefix_cache_queries: counter(),
    external_prefix_cache_hits: counter(), mm_cache_queries: counter(), mm_cache_hits: counter(),
    num_preemptions: counter(), prompt_tokens: counter(), prompt_tokens_cached: counter(), generation_tokens: counter(),
    prompt_tokens_by_source: counter({ source: ['local_compute', 'local_cache_hit', 'external_kv_transfer'] }),
    request_success: counter({ finished_reason: ['stop', 'length', 'abort', 'error', 'repetition'] }),
    time_to_first_token_seconds: histogram(ttft), inter_token_latency_seconds: histogram(gaps),
    request_time_per_output_token_seconds: histogram(gaps), e2e_request_latency_seconds: histogram(seconds),
    request_queue_time_seconds: histogram(seconds), request_prefill_time_seconds: histogram(seconds),
    request_decode_time_seconds: histogram(seconds), request_inference_time_seconds: histogram(seconds),
    request_prompt_tokens: histogram(tokens), request_generation_tokens: histogram(tokens),
    request_max_num_generation_tokens: histogram(tokens), request_params_max_tokens: histogram(tokens),
    request_prefill_kv_computed_tokens: histogram(tokens), request_params_n: histogram([1, 2, 5, 10, 20]),
    iteration_tokens_total: histogram(numbers('1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384')),
  };
})();

test('names, types, labels and buckets are those of vLLM, each with when it began', async () => {
  await complete(server);
  const page = await scrape(server);
  for (const [base, { type, labels, buckets }] of Object.entries(reference)) {
    const name = `vllm:${base}${type === 'counter' ? '_total' : ''}`;
    assert.equal(page.types[name], type, name);
    const samples = page.samples[buckets ? `${name}_bucket` : name];
    const [extra] = Object.keys(labels);
    for (const { labels: { engine, model_name: model, le, ...rest } } of samples) {
      assert.equal(engine, '0', name);
      assert.equal(model, samples[0].labels.model_name, name);
      assert.deepEqual(Object.keys(rest), extra ? [extra] : [], name);
    }
    if (extra) assert.deepEqual(samples.map((s) => s.labels[extra]), labels[extra], name);
    if (buckets) {
      assert.deepEqual(samples.map((s) => s.labels.le),
        [...buckets.map((b) => (Number.isInteger(b) ? `${b}.0` : String(b))), '+Inf'], name);
    }
    if (type === 'gauge') continue;
    const created = page.samples[`vllm:${base}_created`];
    assert.equal(created.length, extra ? labels[extra].length : 1, name);
    assert.ok(created.every((s) => Math.abs(s.value - Date.now() / 1000) < 600), name);
  }
  const known = new Set([...Object.keys(reference).flatMap((base) => [base, `${base}_total`, `${base}_created`]), 'cache_config_info']);
  for (const name of Object.keys(page.types).filter((n) => n.startsWith('vllm:')))
    assert.ok(known.has(name.slice('vllm:'.length)), `${name} is in no list`);
});

test('the HTTP series say when they began, too', async () => {
  await complete(server);
  const page = await scrape(server);
  for (const [name, type, of] of [
    ['http_requests', 'counter', '_total'], ['http_request_size_bytes', 'summary', '_count'],
    ['http_response_size_bytes', 'summary', '_sum'], ['http_request_duration_seconds', 'histogram', '_count'],
    ['http_request_duration_highr_seconds', 'histogram', '_count'],
  ]) {
    assert.equal(page.types[`${name}${type === 'counter' ? '_total' : ''}`], type);
    assert.equal(page.types[`${name}_created`], 'gauge');
    assert.deepEqual(page.samples[`${name}_created`].map((s) => s.labels), page.samples[`${name}${of}`].map((s) => s.labels), name);
  }
  for (const { labels } of page.samples.http_requests_total) assert.deepEqual(Object.keys(labels), ['handler', 'method', 'status']);
  const handlers = new Set(page.samples.http_requests_total.map((s) => s.labels.handler));
  for (const excluded of ['/metrics', '/health', '/load', '/ping', '/version', '/server_info']) assert.ok(!handlers.has(excluded));
});

/** Names of metrics in a query. */
const namesIn = (query) => [...query.matchAll(/\b(?:vllm(?:_c)?:|http_request)[a-z0-9_]+/g)].map((m) => m[0]);

test('dashboard and alerts ask for series that there are', async () => {
  await complete(server);
  const page = await scrape(server);
  const dashboard = JSON.parse(readFileSync(path.join(monitoring, 'grafana.json'), 'utf8'));
  const queries = dashboard.panels.flatMap((panel) => (panel.targets ?? []).map((target) => target.expr));
  assert.ok(queries.length > 30);
  const rules = readFileSync(path.join(monitoring, 'alerts.yml'), 'utf8');
  const expressions = [...rules.matchAll(/expr:([^]*?)\n {8}(?:for|labels):/g)].map((m) => m[1]);
  assert.equal(expressions.length, rules.match(/- alert:/g).length);
  for (const name of [...queries, ...expressions].flatMap(namesIn)) {
    if (!name.startsWith('vllm_c:gpu_')) // absent without a GPU
      assert.ok(page.samples[name], `no series ${name}`);
  }
});

test('Prometheus scrapes, and every query of the dashboard works on what it has', async (t) => {
  if (lacks(t, 'prometheus')) return;
  const dir = mkdtempSync(path.join(tmpdir(), 'vllm-test-'));
  const port = await freePort();
  const config = readFileSync(path.join(monitoring, 'prometheus.yml'), 'utf8')
    .replace('scrape_interval: 15s', 'scrape_interval: 1s\n  evaluation_interval: 1s')
    .replace('- alerts.yml', `- ${path.join(monitoring, 'alerts.yml')}`)
    .replace('localhost:8000', `127.0.0.1:${server.port}`);
  writeFileSync(path.join(dir, 'prometheus.yml'), config);
  const prometheus = startProgram('prometheus', [`--config.file=${dir}/prometheus.yml`, `--storage.tsdb.path=${dir}/data`,
    `--web.listen-address=127.0.0.1:${port}`, '--log.level=warn'], { stdio: ['ignore', 'inherit', 'inherit'] });
  const ask = async (route, query = {}) => {
    const response = await fetch(`http://127.0.0.1:${port}/api/v1/${route}?${new URLSearchParams(query)}`);
    const answer = await response.json();
    assert.equal(answer.status, 'success', `${query.query}: ${answer.error}`);
    return answer.data;
  };
  try {
    const count = async (query) => Number((await ask('query', { query })).result[0]?.value[1] ?? NaN);
    await until('Prometheus has scraped', 30, async () => {
      try {
        return (await ask('targets')).activeTargets[0].health === 'up';
      } catch {
        return false;
      }
    });
    for (let i = 0; i < 6; i++) {
      await complete(server, { max_tokens: 12, prompt: `${prompt} ${i}` });
      await sleep(500);
    }
    const [target] = (await ask('targets')).activeTargets;
    assert.equal(target.lastError, '');
    const page = await scrape(server);
    await until('it has the counters', 10, async () =>
      await count('sum(vllm:request_success_total)') === total(page, 'vllm:request_success_total'));
    const dashboard = JSON.parse(readFileSync(path.join(monitoring, 'grafana.json'), 'utf8'));
    const variables = (text) => text.replaceAll('$model_name', '.*').replaceAll('$instance', '.*').replaceAll('$__rate_interval', '5s');
    for (const panel of dashboard.panels) {
      for (const { expr } of panel.targets ?? []) {
        const { result } = await ask('query', { query: variables(expr) });
        if (!expr.includes('vllm_c:gpu_')) assert.ok(result.length > 0, `${panel.title}: nothing for ${expr}`);
      }
    }
    const groups = (await ask('rules')).groups;
    assert.equal(groups.length, 1);
    for (const rule of groups[0].rules) assert.equal(rule.health, 'ok', `${rule.name}: ${rule.lastError}`);
    assert.deepEqual((await ask('alerts')).alerts.filter((alert) => alert.state === 'firing'), []);
  } finally {
    await prometheus.stop();
    rmSync(dir, { recursive: true });
  }
});
