// Time from exec to the first 200 on /health, over several starts: node bench/startup.mjs [MODEL] [RUNS]
// Prints each run, the median and its ratio to the target of 0.3 s.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const binary = process.env.VLLM_BINARY ?? path.join(root, 'build/release/vllm');
const model = process.argv[2] ?? path.join(root, 'models/demo');
const runs = Number(process.argv[3] ?? 11);
const extra = process.argv.slice(4);
const TARGET_S = 0.3;

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

const seconds = [];
for (let i = 0; i < runs; i++) {
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
  seconds.push(Number(process.hrtime.bigint() - start) / 1e9);
  server.kill('SIGTERM');
  await exited;
}
seconds.sort((a, b) => a - b);
const median = seconds[seconds.length >> 1];
console.log(`runs: ${seconds.map((s) => s.toFixed(3)).join(' ')} s`);
console.log(`median ${median.toFixed(3)} s, target ${TARGET_S} s, ratio ${(median / TARGET_S).toFixed(2)}`);
