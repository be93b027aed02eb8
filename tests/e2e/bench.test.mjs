// `vllm bench` as its users run it: against a real server, with its files, its exit status, Ctrl-C.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Server, binary, demo, sleep } from './server.mjs';

let server;
let folder;
before(async () => {
  server = await Server.start();
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vllm-bench-'));
});
after(async () => {
  await server?.stop();
  if (folder) fs.rmSync(folder, { recursive: true });
});

/** Runs `vllm bench WORDS`; {status, out, err}. `started` sees the process. */
async function bench(words, { started = () => {}, env = {} } = {}) {
  const child = spawn(binary, ['bench', ...words], {
    env: { ...process.env, VLLM_CPU_KVCACHE_SPACE: '1', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const timer = setTimeout(() => child.kill('SIGKILL'), 120_000);
  let out = '';
  let err = '';
  child.stdout.on('data', (bytes) => (out += bytes));
  child.stderr.on('data', (bytes) => (err += bytes));
  started(child, () => out);
  const [code, signal] = await once(child, 'close');
  clearTimeout(timer);
  return { status: code ?? signal, out, err };
}

const serve = (...words) => bench(['serve', '--port', String(server.port), ...words]);

/** The number in a line of the report. */
function line(out, label) {
  const at = out.split('\n').find((text) => text.startsWith(label));
  assert.ok(at, `no line "${label}" in\n${out}`);
  return Number(at.slice(label.length));
}

test('completions: the report adds up and its JSON says the same', async () => {
  const { status, out, err } = await serve(
    '--num-prompts', '12', '--input-len', '20', '--output-len', '9', '--ignore-eos', '--request-rate', '100',
    '--percentile-metrics', 'ttft,tpot,itl,e2el', '--save-result', '--save-detailed', '--result-dir', folder,
    '--result-filename', 'one.json', '--metadata', 'tp=1', '--goodput', 'e2el:100000', '--temperature', '0');
  assert.equal(status, 0, out + err);
  assert.equal(line(out, 'Successful requests:'), 12);
  assert.equal(line(out, 'Failed requests:'), 0);
  assert.equal(line(out, 'Total generated tokens:'), 12 * 9);
  const result = JSON.parse(fs.readFileSync(path.join(folder, 'one.json'), 'utf8'));
  assert.equal(result.completed, 12);
  assert.equal(result.total_output_tokens, 12 * 9);
  assert.equal(result.request_rate, 100);
  assert.equal(result.tp, '1');
  assert.equal(result.output_lens.length, 12);
  assert.ok(result.mean_ttft_ms > 0 && result.median_ttft_ms <= result.p99_ttft_ms);
  assert.ok(result.median_e2el_ms >= result.median_ttft_ms);
  assert.ok(Math.abs(result.request_goodput - result.request_throughput) < 1e-9);
  // The server counted the prompts that the client made with the same tokenizer.
  assert.ok(result.input_lens.every((n) => Math.abs(n - 20) <= 1), String(result.input_lens));
});

test('chat: works with a limit and without a tokenizer', async () => {
  const { status, out, err } = await serve(
    '--backend', 'openai-chat', '--num-prompts', '8', '--input-len', '10', '--output-len', '5', '--max-concurrency', '2',
    '--skip-tokenizer-init', '--num-warmups', '2', '--ready-check-timeout-sec', '10');
  assert.equal(status, 0, out + err);
  assert.match(out, /Starting initial single prompt test run/);
  assert.equal(line(out, 'Successful requests:') + (/Empty/.test(out) ? line(out, 'Empty answers:') : 0), 8);
  assert.equal(line(out, 'Maximum request concurrency:'), 2);
});

test('the same seed sends the same prompts', async () => {
  const bodies = [[], []];
  for (const seen of bodies) {
    const fake = http.createServer((request, answer) => {
      let body = '';
      request.on('data', (bytes) => (body += bytes));
      request.on('end', () => {
        seen.push(body);
        answer.writeHead(200, { 'content-type': 'text/event-stream' });
        answer.end('data: {"choices":[{"text":"x","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n');
      });
    });
    fake.listen(0, '127.0.0.1');
    await once(fake, 'listening');
    const { status, out, err } = await bench([
      'serve', '--base-url', `http://127.0.0.1:${fake.address().port}/`, '--model', demo, '--seed', '7',
      '--num-prompts', '5', '--input-len', '12', '--random-range-ratio', '0.5', '--max-concurrency', '1']);
    assert.equal(status, 0, out + err);
    fake.close();
  }
  assert.equal(bodies[0].length, 5);
  assert.deepEqual(bodies[0], bodies[1]);
});

test('embeddings: vectors are counted and timed, and nothing is said of tokens that were not made', async () => {
  const pooling = await Server.start(['--runner', 'pooling']);
  try {
    const { status, out, err } = await bench([
      'serve', '--port', String(pooling.port), '--backend', 'openai-embeddings', '--num-prompts', '10', '--random-input-len', '24',
      '--random-range-ratio', '0.5', '--max-concurrency', '3', '--save-detailed', '--goodput', 'e2el:100000',
      '--result-dir', folder, '--result-filename', 'vectors.json', '--plot', path.join(folder, 'vectors.svg')]);
    assert.equal(status, 0, out + err);
    assert.equal(line(out, 'Successful requests:'), 10);
    assert.ok(line(out, 'Median E2EL (ms):') > 0);
    assert.doesNotMatch(out, /generated|Output token|TTFT|temperature/);
    const result = JSON.parse(fs.readFileSync(path.join(folder, 'vectors.json'), 'utf8'));
    assert.equal(result.backend, 'openai-embeddings');
    assert.equal(result.completed, 10);
    assert.equal(result.total_input_tokens, result.input_lens.reduce((sum, n) => sum + n));
    assert.ok(result.input_lens.every((n) => n >= 11 && n <= 37), String(result.input_lens));
    assert.ok(result.p99_e2el_ms >= result.median_e2el_ms && !('mean_ttft_ms' in result) && !('output_throughput' in result));
    assert.ok(result.e2els.every((seconds) => seconds > 0));
    assert.match(fs.readFileSync(path.join(folder, 'vectors.svg'), 'utf8'), /End-to-end latency/);
    // Seven prompts, three in a request, so that the last holds one; the server counts all of them.
    const batched = await bench([
      'serve', '--port', String(pooling.port), '--backend', 'openai-embeddings', '--num-prompts', '7', '--input-len', '20',
      '--random-batch-size', '3', '--save-detailed', '--result-dir', folder, '--result-filename', 'batched.json']);
    assert.equal(batched.status, 0, batched.out + batched.err);
    assert.equal(line(batched.out, 'Successful requests:'), 3);
    const lengths = JSON.parse(fs.readFileSync(path.join(folder, 'batched.json'), 'utf8')).input_lens;
    [60, 60, 20].forEach((n, i) => assert.ok(Math.abs(lengths[i] - n) <= 3, String(lengths)));
    const generating = await serve('--backend', 'openai-embeddings', '--num-prompts', '1', '--input-len', '5');
    assert.equal(generating.status, 1);
    assert.match(generating.out, /Error 0: HTTP 404/);
  } finally {
    await pooling.stop();
  }
});

test('failures are counted, shown and end with 1', async () => {
  const wrongModel = await serve('--served-model-name', 'nope', '--num-prompts', '12', '--input-len', '5');
  assert.equal(wrongModel.status, 1);
  assert.equal(line(wrongModel.out, 'Failed requests:'), 12);
  assert.match(wrongModel.out, /Error 9: HTTP 404 Not Found: The model `nope` does not exist\./);
  assert.doesNotMatch(wrongModel.out, /Error 10:/);
  const nobody = await bench(['serve', '--port', '1', '--model', 'm', '--num-prompts', '2']);
  assert.equal(nobody.status, 1);
  assert.match(nobody.out, /Error 0: Connection refused/);
  const noModel = await bench(['serve', '--port', '1']);
  assert.equal(noModel.status, 1);
  assert.match(noModel.err, /no server answers at http:\/\/127\.0\.0\.1:1/);
  const scheme = await bench(['serve', '--base-url', 'ftp://127.0.0.1']);
  assert.match(scheme.err, /'ftp:\/\/127\.0\.0\.1', expected http\[s\]:/);
  const plain = await bench(['serve', '--base-url', `https://127.0.0.1:${server.port}`]);
  assert.match(plain.err, /no server answers at https:.*TLS failed/);
  assert.equal((await bench(['serve', '--frobnicate'])).status, 2);
  assert.equal((await bench(['dance'])).status, 2);
});

test('Ctrl-C prints the report so far', async () => {
  const { status, out } = await bench(
    ['serve', '--port', String(server.port), '--num-prompts', '400', '--input-len', '5', '--output-len', '4', '--ignore-eos', '--request-rate', '20'],
    {
      started: async (child, text) => {
        while (!text().includes('Maximum request concurrency: None')) await sleep(10);
        await sleep(1500);
        child.kill('SIGINT');
      },
    });
  assert.equal(status, 0, out); // some did succeed
  assert.match(out, /Interrupted: this is the report so far/);
  const ok = line(out, 'Successful requests:');
  const empty = /Empty answers/.test(out) ? line(out, 'Empty answers:') : 0;
  assert.ok(ok > 0 && ok < 400);
  assert.equal(ok + empty + line(out, 'Failed requests:') + line(out, 'Cancelled requests:'), 400);
});

test('sweep: a table, files for every run, and a picture', async () => {
  const plot = path.join(folder, 'sweep.html');
  const { status, out, err } = await bench([
    'sweep', '--port', String(server.port), '--max-concurrencies', '1,4', '--num-runs', '2', '--num-prompts', '6',
    '--input-len', '8', '--output-len', '6', '--ignore-eos', '-o', folder, '--experiment-name', 'x', '--plot', plot]);
  assert.equal(status, 0, out + err);
  const summary = JSON.parse(fs.readFileSync(path.join(folder, 'x/summary.json'), 'utf8'));
  assert.deepEqual(summary.map((run) => [run.max_concurrency, run.run_number, run.completed]),
    [[1, 0, 6], [1, 1, 6], [4, 0, 6], [4, 1, 6]]);
  assert.ok(fs.existsSync(path.join(folder, 'x/BENCH--max_concurrency=4/run=1.json')));
  assert.equal(fs.readFileSync(path.join(folder, 'x/summary.csv'), 'utf8').trim().split('\n').length, 5);
  const page = fs.readFileSync(plot, 'utf8');
  assert.match(page, /^<!doctype html>[^]*<svg [^]*4 at a time[^]*<\/svg>\n<\/body><\/html>\n$/);
  assert.doesNotMatch(page, /<script|href=|src=/);
});

test('throughput and latency measure an engine of their own', async () => {
  const json = path.join(folder, 'throughput.json');
  const throughput = await bench([
    'throughput', '--model', demo, '--num-prompts', '10', '--input-len', '8', '--output-len', '4', '--n', '2', '--num-warmups', '2',
    '--output-json', json, '--max-model-len', '256']);
  assert.equal(throughput.status, 0, throughput.out + throughput.err);
  assert.match(throughput.out, /^Throughput: [\d.]+ requests\/s, [\d.]+ total tokens\/s, [\d.]+ output tokens\/s$/m);
  assert.match(throughput.out, /^Total num output tokens: {2}80$/m);
  assert.deepEqual(Object.keys(JSON.parse(fs.readFileSync(json, 'utf8'))),
    ['elapsed_time', 'num_requests', 'total_num_tokens', 'requests_per_second', 'tokens_per_second']);
  const latency = await bench([
    'latency', '--model', demo, '--batch-size', '2', '--input-len', '8', '--output-len', '4', '--num-iters', '3', '--num-iters-warmup', '1']);
  assert.equal(latency.status, 0, latency.out + latency.err);
  assert.match(latency.out, /^Avg latency: [\d.e-]+ seconds$/m);
  assert.match(latency.out, /^99% percentile latency: [\d.e-]+ seconds$/m);
  const tooLong = await bench(['latency', '--model', demo, '--input-len', '500', '--max-model-len', '256']);
  assert.equal(tooLong.status, 1);
  assert.match(tooLong.err, /500 tokens and its answer 128, more than the model's 256/);
  const noModel = await bench(['throughput', '--model', '/nowhere']);
  assert.notEqual(noModel.status, 0);
});
