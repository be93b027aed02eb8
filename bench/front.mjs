// The front end alone (HTTP, tokenizer, SSE, messages) before an engine that answers at once:
//   node bench/front.mjs [BUILD_FOLDER] [RUNS]        (a Release build with -DVLLM_BENCH=ON)
// Four measures for 1 and 2 API servers, each the median of several runs:
//   streams   64 and 1,024 streams at once, all as fast as they go: streamed tokens a second
//   requests  64 at a time, one token each: requests a second
//   single    one request at a time, of one token: the time to first token without any load
//   paced     64 streams, a token every 20 ms: the time to first token that the front adds, since the engine
//             adds none
// Below the table: what counts against its target, and the ratio of the two. The client is one `vllm bench serve` on
// the same machine, and its work is in the figures.
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const build = path.resolve(process.argv[2] ?? path.join(root, 'build/release'));
const runs = Number(process.argv[3] ?? 5);
const model = path.join(root, 'models/demo');
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vllm-front-'));

/** Seconds of processor time that a process and its children have used. */
function cpuSeconds(pid) {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /, '').split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

const childrenOf = (pid) => fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number);

class Front {
  static async start(stepUs, numServers) {
    const front = new Front();
    front.process = spawn(path.join(build, 'bench/front_server'),
      [String(stepUs), model, '--host', '127.0.0.1', '--port', '0', '--disable-uvicorn-access-log', '--api-server-count', String(numServers)],
      { stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    for await (const bytes of front.process.stdout) {
      text += bytes;
      const ready = /^ready (\S+)$/m.exec(text);
      if (ready) {
        front.url = ready[1];
        break;
      }
    }
    front.servers = childrenOf(front.process.pid).slice(1); // the first is the engine
    return front;
  }

  /** One run; its result and the processor time that the API servers spent. */
  run(words) {
    const file = path.join(folder, 'r.json');
    const before = this.servers.map(cpuSeconds);
    execFileSync(path.join(build, 'vllm'),
      ['bench', 'serve', '--base-url', this.url, '--model', model, '--input-len', '16', '--ignore-eos', '--save-result', '--disable-tqdm',
        '--metric-percentiles', '99', '--result-filename', file, ...words.map(String)], { stdio: ['ignore', 'ignore', 'inherit'] });
    const result = JSON.parse(fs.readFileSync(file, 'utf8'));
    if (result.completed !== result.num_prompts) throw new Error(`${result.failed} of ${result.num_prompts} requests failed`);
    result.cpu = this.servers.map((pid, i) => cpuSeconds(pid) - before[i]).reduce((a, b) => a + b);
    return result;
  }

  async stop() {
    this.process.kill('SIGTERM');
    await once(this.process, 'exit');
  }
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const rows = [];

async function measure(name, stepUs, numServers, words) {
  const front = await Front.start(stepUs, numServers);
  front.run(words); // the first run warms the server up
  const results = [];
  for (let i = 0; i < runs; i++) results.push(front.run(words));
  await front.stop();
  const of = (key) => median(results.map((r) => r[key]));
  rows.push([name, numServers, of('output_throughput').toFixed(0), of('request_throughput').toFixed(0),
    median(results.map((r) => r.total_output_tokens / r.cpu)).toFixed(0), of('median_ttft_ms').toFixed(2), of('p99_ttft_ms').toFixed(2),
    of('median_itl_ms').toFixed(2), of('p99_itl_ms').toFixed(2)]);
}

const load = () => os.loadavg().map((x) => x.toFixed(1)).join(' ');
const loadBefore = load();
for (const numServers of [1, 2]) {
  await measure('64 streams, as fast as they go', 400, numServers, ['--num-prompts', 64 * 6, '--max-concurrency', 64, '--output-len', 512]);
  await measure('1,024 streams, as fast as they go', 6000, numServers, ['--num-prompts', 1024, '--max-concurrency', 1024, '--output-len', 200]);
  await measure('requests of one token, 64 at a time', 1000, numServers, ['--num-prompts', 5000, '--max-concurrency', 64, '--output-len', 1]);
  await measure('requests of one token, one at a time', 1000, numServers, ['--num-prompts', 1000, '--max-concurrency', 1, '--output-len', 1]);
  await measure('64 streams, a token every 20 ms', 20000, numServers,
    ['--num-prompts', 512, '--max-concurrency', 64, '--request-rate', 100, '--output-len', 30]);
}
fs.rmSync(folder, { recursive: true });
const cpu = os.cpus();
console.log(`${new Date().toISOString().slice(0, 10)}, ${cpu.length} x ${cpu[0].model.trim()}, load before ${loadBefore}, after ${load()}; medians of ${runs} runs\n`);
console.log('| load | API servers | tokens/s | requests/s | tokens per second of API server CPU | TTFT median, ms | p99 | ITL median, ms | p99 |');
console.log('| --- | --- | --- | --- | --- | --- | --- | --- | --- |');
for (const row of rows) console.log(`| ${row.join(' | ')} |`);
const rowOf = (name) => rows.find((row) => row[0] === name && row[1] === 1);
const tokens = Math.max(...['64 streams, as fast as they go', '1,024 streams, as fast as they go'].map((name) => Number(rowOf(name)[2])));
const added = Number(rowOf('64 streams, a token every 20 ms')[5]);
console.log(`\nstreamed tokens/s of one API server: ${tokens}, target 100000, ratio ${(tokens / 100000).toFixed(2)}`);
console.log(`median time to first token added at 64 streams: ${added.toFixed(2)} ms, target 1 ms, ratio ${(added / 1).toFixed(2)}`);
