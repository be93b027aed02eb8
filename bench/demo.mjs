// The tools of an operator, each seen working on the demo server:
//   node bench/demo.mjs [BUILD_FOLDER] > bench/results/demo.md        (a Release build)
// Loads a server with `vllm bench serve` and, under that load, reads /metrics and the log; then plan, sweep, throughput and
// latency. Prints a page of Markdown with the commands and what they said.
import { spawn, execFileSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const vllm = path.join(path.resolve(process.argv[2] ?? path.join(root, 'build/release')), 'vllm');
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vllm-demo-'));
const env = { ...process.env, VLLM_CPU_KVCACHE_SPACE: '1', OMP_WAIT_POLICY: 'passive' };
process.chdir(root);

async function freePort() {
  const probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

const load = () => os.loadavg()[0].toFixed(1);
const show = (words) => words.map((word) => (/[^\w./:=,-]/.test(word) ? `'${word}'` : word)).join(' ');
const block = (command, text) => console.log(`\n\`\`\`\n$ ${command}\n${text.trimEnd()}\n\`\`\``);

/** Runs `vllm WORDS`; what it printed on standard output. */
async function run(words) {
  const child = spawn(vllm, words, { env, stdio: ['ignore', 'pipe', 'ignore'] });
  let out = '';
  child.stdout.on('data', (bytes) => (out += bytes));
  const [status] = await once(child, 'close');
  if (status !== 0) throw new Error(`vllm ${show(words)} ended with ${status}:\n${out}`);
  return out;
}

const port = await freePort();
const url = `http://127.0.0.1:${port}`;
const serveWords = ['serve', 'models/demo', '--host', '127.0.0.1', '--port', String(port), '--api-server-count', '2'];
const server = spawn(vllm, serveWords, { env: { ...env, VLLM_LOG_STATS_INTERVAL: '2' }, stdio: ['ignore', 'pipe', 'pipe'] });
let log = '';
server.stdout.on('data', (bytes) => (log += bytes));
server.stderr.on('data', (bytes) => (log += bytes));
const deadline = Date.now() + 60_000;
while (!(await fetch(`${url}/health`).then((r) => r.ok, () => false))) {
  if (server.exitCode !== null || Date.now() > deadline) throw new Error(`no server:\n${log}`);
  await new Promise((resolve) => setTimeout(resolve, 50));
}
const metrics = async () => (await fetch(`${url}/metrics`)).text();
const value = (page, name) => [...page.matchAll(new RegExp(`^${name}(?:\\{[^}]*\\})? (\\S+)$`, 'gm'))].reduce((sum, m) => sum + Number(m[1]), 0);

try {
  const cpu = os.cpus();
  console.log('# The demo server under load');
  console.log(`\n${new Date().toISOString().slice(0, 10)}. ${cpu.length} x ${cpu[0].model.trim()}, Linux ${os.release().split('.').slice(0, 2).join('.')}, `
    + `load ${load()} before. The client runs on the same cores.\nMade by \`node bench/demo.mjs\`.`);

  console.log('\n## Bench serve, with metrics and log under its load');
  console.log('\n`VLLM_CPU_KVCACHE_SPACE=1 vllm serve models/demo --api-server-count 2`, the line of statistics every 2 s.');
  const words = ['bench', 'serve', '--base-url', url, '--model', 'models/demo', '--random-input-len', '64', '--random-output-len', '64',
    '--num-prompts', '300', '--max-concurrency', '16', '--ignore-eos', '--temperature', '0', '--goodput', 'ttft:1000', 'tpot:50', '--disable-tqdm'];
  const before = await metrics();
  const running = run(words);
  const seen = [];
  let ended = false;
  running.finally(() => (ended = true)).catch(() => {});
  while (!ended) {
    await new Promise((resolve) => setTimeout(resolve, 250));
    if (!ended) seen.push(await metrics());
  }
  const report = await running;
  block(`vllm ${show(words).replaceAll(url, 'http://localhost:8000')}`, report.slice(report.indexOf('====')));
  const after = await metrics();
  const rose = (name) => value(after, name) - value(before, name);
  console.log('\nWhat /metrics counted between the first and the last scrape, and its extremes while the load ran:\n');
  console.log('| series | value |\n| --- | --- |');
  for (const name of ['vllm:request_success_total', 'vllm:prompt_tokens_total', 'vllm:generation_tokens_total',
    'vllm:time_to_first_token_seconds_count', 'vllm:inter_token_latency_seconds_count', 'vllm:e2e_request_latency_seconds_count',
    'vllm_c:requests_received_total', 'vllm_c:engine_steps_total', 'vllm:num_preemptions_total', 'http_requests_total'])
    console.log(`| \`${name}\` | +${rose(name)} |`);
  for (const name of ['vllm:num_requests_running', 'vllm:num_requests_waiting', 'vllm:kv_cache_usage_perc'])
    console.log(`| \`${name}\` | at most ${Math.max(...seen.map((page) => value(page, name)))} |`);
  console.log(`| time to first token by the server's histogram, mean | ${(1000 * rose('vllm:time_to_first_token_seconds_sum') / rose('vllm:time_to_first_token_seconds_count')).toFixed(1)} ms |`);
  block('grep "Engine 000" LOG', log.split('\n').filter((line) => line.includes('Engine 000')).slice(0, 4).join('\n'));

  console.log('\n## Bench sweep');
  const sweep = ['bench', 'sweep', '--base-url', url, '--model', 'models/demo', '--random-input-len', '32', '--random-output-len', '32',
    '--num-prompts', '96', '--max-concurrencies', '1,2,4,8,16,32', '--num-runs', '3', '--ignore-eos', '--temperature', '0', '--disable-tqdm',
    '--output-dir', folder, '--plot', 'docs/sweep.svg'];
  const table = await run(sweep);
  block(`vllm ${show(sweep).replaceAll(url, 'http://localhost:8000').replaceAll(folder, 'results')}`,
    table.slice(table.lastIndexOf('\npoint ') + 1, table.indexOf('Results saved')));
  console.log('\n![throughput against latency](../../docs/sweep.svg)');
} finally {
  server.kill('SIGTERM');
  await once(server, 'exit');
}

console.log('\n## Bench throughput and latency: the engine alone');
for (const words of [
  ['bench', 'throughput', '--model', 'models/demo', '--random-input-len', '64', '--random-output-len', '64', '--num-prompts', '200'],
  ['bench', 'latency', '--model', 'models/demo', '--input-len', '32', '--output-len', '64', '--batch-size', '8', '--num-iters', '10', '--num-iters-warmup', '3'],
])
  block(`vllm ${show(words)}`, await run(words));

console.log('\n## Plan');
for (const words of [['plan', 'models/demo', '--host-memory', '16G'], ['plan', 'bench/models/qwen3-8b', '--gpu-memory', '141G']])
  block(`vllm ${show(words)}`, execFileSync(vllm, words, { env: process.env, stdio: ['ignore', 'pipe', 'ignore'], encoding: 'utf8' }));
console.log(`\nLoad after: ${load()}.`);
fs.rmSync(folder, { recursive: true });
