// `vllm bench sweep serve` and `serve_workload`: servers that it starts itself, in every way that
// they and the commands beside them can end.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Server, binary, demo, freePort, isSlow, timeScale, until } from './server.mjs';

let folder;
before(() => {
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'vllm-sweep-'));
});
after(() => {
  if (folder) fs.rmSync(folder, { recursive: true });
});

/** Runs `vllm bench sweep WORDS`; {status, out, err}. `started` sees the process. */
async function sweep(words, { started = () => {} } = {}) {
  const { VLLM_BINARY: _, ...env } = process.env;
  const child = spawn(binary, ['bench', 'sweep', ...words], {
    env: { ...env, VLLM_CPU_KVCACHE_SPACE: '1' }, cwd: folder, stdio: ['ignore', 'pipe', 'pipe'],
  });
  const timer = setTimeout(() => child.kill('SIGKILL'), 150_000 * timeScale);
  let out = '';
  let err = '';
  child.stdout.on('data', (bytes) => (out += bytes));
  child.stderr.on('data', (bytes) => (err += bytes));
  const exited = once(child, 'close');
  await started(child, () => out);
  const [code, signal] = await exited;
  clearTimeout(timer);
  return { status: code ?? signal, out, err };
}

/** A JSON file in the folder. */
function file(name, content) {
  fs.writeFileSync(path.join(folder, name), typeof content === 'string' ? content : JSON.stringify(content));
  return name;
}

const readJson = (...parts) => JSON.parse(fs.readFileSync(path.join(folder, ...parts), 'utf8'));
const serveCommand = (port) => `${binary} serve ${demo} --host 127.0.0.1 --port ${port}`;
const benchCommand = (port) =>
  `${binary} bench serve --port ${port} --num-prompts 6 --input-len 8 --output-len 5 --ignore-eos`;

/** Nothing listens there any more. */
async function isFree(port) {
  const probe = net.connect(port, '127.0.0.1');
  const isTaken = await new Promise((resolve) => {
    probe.on('connect', () => resolve(true));
    probe.on('error', () => resolve(false));
  });
  probe.destroy();
  return !isTaken;
}

test('a server for each set of its flags, a run for each pair that is linked, and the files of all', async () => {
  const port = await freePort();
  const words = [
    'serve', '--serve-cmd', serveCommand(port), '--bench-cmd', benchCommand(port),
    '--serve-params', file('serve.json', [{ max_num_seqs: 1 }, { max_num_seqs: 4, enable_prefix_caching: false }]),
    '--bench-params', file('bench.json', { one: { max_concurrency: 1 }, four: { max_concurrency: 4, seed: 9 } }),
    '--link-vars', 'max_num_seqs=max_concurrency', '--num-runs', '2', '-o', 'out', '--experiment-name', 'x', '--plot', 'x.html'];
  const dry = await sweep([...words, '--dry-run']);
  assert.equal(dry.status, 0, dry.out + dry.err);
  assert.match(dry.out, /^Server: .* --max-num-seqs 4 --no-enable-prefix-caching$/m);
  assert.match(dry.out, /^ {2}2 runs: .* --max-concurrency 4 --seed 9 /m);
  assert.ok(!fs.existsSync(path.join(folder, 'out')));

  const { status, out, err } = await sweep(words);
  assert.equal(status, 0, out + err);
  assert.equal(out.match(/^Server: /gm).length, 2);
  const summary = readJson('out/x/summary.json');
  assert.deepEqual(summary.map((run) => [run.max_num_seqs, run.max_concurrency, run.run_number, run.completed]),
    [[1, 1, 0, 6], [1, 1, 1, 6], [4, 4, 0, 6], [4, 4, 1, 6]]);
  assert.ok(summary.every((run) => run.median_e2el_ms > 0));
  const name = 'out/x/SERVE--max_num_seqs=4-enable_prefix_caching=false-BENCH--four';
  assert.equal(readJson(`${name}/run=1.json`).enable_prefix_caching, false);
  assert.deepEqual(fs.readdirSync(path.join(folder, name)).sort(), ['run=0.json', 'run=0.log', 'run=1.json', 'run=1.log']);
  assert.match(fs.readFileSync(path.join(folder, name, 'run=0.log'), 'utf8'), /Serving Benchmark Result/);
  // Between the runs the prefix cache of the server is emptied, which it does for a sweep alone.
  assert.equal(fs.readFileSync(path.join(folder, 'out/x/SERVE--max_num_seqs=1.log'), 'utf8')
    .match(/POST \/reset_prefix_cache HTTP\/1\.1" 200/g)?.length, 2);
  const [head, ...rows] = fs.readFileSync(path.join(folder, 'out/x/summary.csv'), 'utf8').trim().split('\n');
  assert.match(head, /^date,.*request_throughput.*max_num_seqs/);
  assert.equal(rows.length, 4);
  const page = fs.readFileSync(path.join(folder, 'x.html'), 'utf8');
  assert.match(page, /SERVE--max_num_seqs=1-BENCH--one/);
  assert.match(page, /2 points of 6 requests each/);
  assert.ok(await isFree(port));

  // The folder is there: a sweep begins anew only under another name, or goes on.
  const again = await sweep(words);
  assert.equal(again.status, 1);
  assert.match(again.err, /out\/x is there already: --resume goes on with it/);
  fs.rmSync(path.join(folder, name, 'run=1.json'));
  const resumed = await sweep([...words, '--resume']);
  assert.equal(resumed.status, 0, resumed.out + resumed.err);
  assert.equal(resumed.out.match(/^Server: /gm).length, 1);
  assert.equal(resumed.out.match(/: is there$/gm).length, 3);
  assert.equal(readJson('out/x/summary.json').length, 4);
  assert.ok(await isFree(port));
});

test('serve_workload goes from one at a time to all at once, and the loads between follow from these', async () => {
  const port = await freePort();
  const { status, out, err } = await sweep([
    'serve_workload', '--serve-cmd', serveCommand(port), '--bench-cmd', benchCommand(port), '--workload-iters', isSlow ? '3' : '5',
    '--workload-var', 'request_rate', '--num-runs', '1', '-o', 'out', '--experiment-name', 'w']);
  assert.equal(status, 0, out + err);
  const summary = readJson('out/w/summary.json');
  assert.equal(summary[0].max_concurrency, 1);
  assert.equal(summary.at(-1).max_concurrency, 6);
  const [least, most] = [summary[0].request_throughput, summary.at(-1).request_throughput];
  const rates = summary.slice(1, -1).map((run) => run.request_rate);
  if (most > least) assert.equal(rates.length, isSlow ? 1 : 3);
  else assert.match(out, /there is no load between/); // on a machine that is busy enough
  assert.deepEqual(rates, [...rates].sort((a, b) => a - b));
  for (const rate of rates) {
    assert.ok(rate > least * 0.999 && rate < most * 1.001, `${least} ${rate} ${most}`);
    assert.ok(fs.existsSync(path.join(folder, `out/w/BENCH--default-LOAD--request_rate=${rate}/run=0.json`)));
  }
});

test('a running server, a command after each run, and output that is shown', async () => {
  const server = await Server.start();
  try {
    const { status, out, err } = await sweep([
      'serve', '--bench-cmd', benchCommand(server.port), '--num-runs', '2', '-o', 'out', '--experiment-name', 'running',
      '--after-bench-cmd', 'sh -c "echo after >> after.txt"', '--show-stdout']);
    assert.equal(status, 0, out + err);
    assert.equal(out.match(/Serving Benchmark Result/g).length, 2);
    assert.equal(fs.readFileSync(path.join(folder, 'after.txt'), 'utf8'), 'after\nafter\n');
    const taken = await sweep(['serve', '--serve-cmd', serveCommand(server.port), '--bench-cmd', benchCommand(server.port), '-o', 'out', '--experiment-name', 't']);
    assert.equal(taken.status, 1);
    assert.match(taken.err, /a server answers at http:\/\/127\.0\.0\.1:\d+ already/);
    assert.ok(await server.healthy());
  } finally {
    await server.stop();
  }
});

test('servers and commands that fail are told with the end of their output', async () => {
  const port = await freePort();
  let number = 0;
  const fail = async (pattern, ...words) => {
    const result = await sweep(['serve', '-o', 'out', '--experiment-name', `fail-${number++}`, ...words]);
    assert.equal(result.status, 1, result.out);
    assert.match(result.err, pattern);
    return result;
  };
  const bench = ['--bench-cmd', benchCommand(port)];
  await fail(/the server ended with exit status [12]; the end of its output \(out\/fail-0\/SERVE--default\.log\):\n[^]*\/nowhere/,
    '--serve-cmd', `${binary} serve /nowhere --host 127.0.0.1 --port ${port}`, ...bench);
  await fail(/the server was not ready within 1 s; the end of its output [^]*up to no good/,
    '--serve-cmd', `sh -c "echo up to no good; sleep 1000 & sleep 1000" sh --port ${port}`, '--server-ready-timeout', '1', ...bench);
  await fail(/\/nowhere\/vllm cannot be run: No such file/, '--serve-cmd', `/nowhere/vllm --port ${port}`, ...bench);
  await fail(/--port is 'many', expected an integer/, '--serve-cmd', 'vllm serve m --port many', ...bench);
  await fail(/--bench-cmd is 'vllm "bench': a quote/, '--bench-cmd', 'vllm "bench');
  await fail(/bad\.json: .*\(line 1\)/, '--bench-params', file('bad.json', '[{]'), ...bench);
  await fail(/the benchmark ended with exit status 2; the end of its output [^]*unrecognized arguments: --frobnicate/,
    '--serve-cmd', serveCommand(port), '--bench-cmd', `${benchCommand(port)} --frobnicate`);
  await fail(/run=0\.json\.new: no result/, '--bench-cmd', 'true');
  assert.ok(await isFree(port));
});

test('a server that dies during a run ends the sweep with its last words', async () => {
  const port = await freePort();
  const { status, err } = await sweep([
    'serve', '--serve-cmd', serveCommand(port), '-o', 'out', '--experiment-name', 'dies',
    '--bench-cmd', 'sh -c "sleep 1000"', // which is still there when its server is killed
  ], {
    started: async (child, text) => {
      await until('the server is ready', 60, () => text().includes('Ready at'));
      const children = fs.readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim().split(' ');
      const server = children.find((pid) => fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('\0--port\0'));
      process.kill(Number(server), 'SIGKILL');
    },
  });
  assert.equal(status, 1);
  assert.match(err, /the server ended with signal 9/);
  await until('the port is free', 30, () => isFree(port));
});

test('a sweep that is killed takes its server and its benchmark along', async () => {
  const port = await freePort();
  const { status } = await sweep([
    'serve', '--serve-cmd', serveCommand(port), '--bench-cmd', 'sh -c "echo $$ > bench.pid; exec sleep 1000"', '-o', 'out', '--experiment-name', 'k',
  ], {
    started: async (child) => {
      await until('the benchmark runs', 60, () => fs.existsSync(path.join(folder, 'bench.pid')));
      child.kill('SIGKILL');
    },
  });
  assert.equal(status, 'SIGKILL');
  await until('the server is gone', 60, () => isFree(port));
  const pid = await until('the benchmark wrote its id', 10, () => Number(fs.readFileSync(path.join(folder, 'bench.pid'), 'utf8')));
  await until('the benchmark is gone', 60, () => !fs.existsSync(`/proc/${pid}`) || fs.readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z '));
});

test('Ctrl-C ends the benchmark and the server, keeps what is done, and --resume goes on', async () => {
  const port = await freePort();
  const words = ['serve', '--serve-cmd', serveCommand(port), '--bench-cmd', benchCommand(port), '-o', 'out', '--experiment-name', 'c',
    '--bench-params', file('two.json', [{ seed: 1 }, { seed: 2, request_rate: 0.05 }]), '--num-runs', '1'];
  let pid;
  const { status, out, err } = await sweep(words, {
    started: async (child, text) => {
      pid = child.pid;
      await until('the second run is under way', 60, () => text().includes('--request-rate 0.05'));
      child.kill('SIGINT');
    },
  });
  assert.equal(status, 1, out);
  assert.match(err, /error: interrupted/);
  assert.equal(readJson('out/c/summary.json').length, 1);
  assert.ok(await isFree(port), `the server of ${pid} is still there`);
  file('two.json', [{ seed: 1 }, { _benchmark_name: 'seed=2-request_rate=0.05', seed: 2 }]);
  const resumed = await sweep([...words, '--resume']);
  assert.equal(resumed.status, 0, resumed.out + resumed.err);
  assert.deepEqual(readJson('out/c/summary.json').map((run) => run.seed), [1, 2]);
});
