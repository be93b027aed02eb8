// What operators type: the start script and the check of a practitioner's guide, faults included.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, writeFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { Server, binary, demo, until } from './server.mjs';

const script = [
  '--dtype', 'bfloat16', '--max-model-len', '2048', '--gpu-memory-utilization', '0.92',
  '--max-num-seqs', '256', '--enable-chunked-prefill', '--api-key', 'KEY', '--served-model-name', 'NAME',
  '--tensor-parallel-size', '1', '--max-num-partial-prefills', '2', '--disable-log-requests',
];

test('the start script and its check work as written', async () => {
  const server = await Server.start(script);
  try {
    const output = execFileSync('curl', [
      '-s', `${server.url}/v1/chat/completions`,
      '-H', 'Content-Type: application/json', '-H', 'Authorization: Bearer KEY',
      '-d', '{"model": "NAME", "messages": [{"role": "user", "content": "你好"}], "max_tokens": 100}',
    ]);
    const answer = JSON.parse(output);
    assert.ok(answer.choices[0].message.content.length > 0, String(output));
    assert.match(server.log, /GPU KV cache size: [\d,]+ tokens/);
    assert.match(server.log, /Maximum concurrency for 2,048 tokens per request: [\d.]+x/);
    assert.match(server.log, /Loading weights took [\d.]+ seconds/);
    assert.match(server.log, /Starting vLLM server on http:\/\/127\.0\.0\.1:\d+/);
    const plan = server.log.search(/KV cache/);
    const loaded = server.log.search(/Loading weights took/);
    assert.ok(plan >= 0 && plan < loaded, 'the memory plan comes before loading');
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('ps shows which process is which', async () => {
  const server = await Server.start(['--api-server-count', '2']);
  try {
    const tree = execFileSync('ps', ['--no-headers', '-o', 'args', '--ppid', String(server.pid)], { encoding: 'utf8' });
    assert.match(tree, /EngineCore/);
    assert.match(tree, /APIServer/);
    assert.equal(tree.trim().split('\n').length, 3, tree);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('a configuration file gives what the command line does not', async () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'vllm-test-'));
  const file = path.join(dir, 'serve.yaml');
  writeFileSync(file, 'served-model-name: from-file\nmax_model_len: 1k\nmax-num-seqs: 4\n');
  const server = await Server.start(['--config', file, '--max-num-seqs', '8']);
  try {
    const models = JSON.parse((await server.get('/v1/models')).body);
    assert.equal(models.data[0].id, 'from-file');
    assert.equal(models.data[0].max_model_len, 1000);
    assert.match(server.log, /non-default args: .*max_num_seqs.*8/);
  } finally {
    assert.equal(await server.stop(), 0);
    rmSync(dir, { recursive: true });
  }
});

test('a Unix socket serves as well', async () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'vllm-test-'));
  const socket = path.join(dir, 'vllm.sock');
  const server = await Server.start(['--uds', socket], { wait: false });
  try {
    await until('the socket answers', 30, () => {
      try {
        return execFileSync('curl', ['-s', '-o', '/dev/null', '-w', '%{http_code}', '--unix-socket', socket, 'http://localhost/health'], { encoding: 'utf8' }) === '200';
      } catch {
        return false;
      }
    });
  } finally {
    assert.equal(await server.stop(), 0);
    rmSync(dir, { recursive: true });
  }
});

test('a port that is taken is said at once', async () => {
  const server = await Server.start();
  try {
    const error = run(['serve', demo, '--host', '127.0.0.1', '--port', String(server.port)]);
    assert.notEqual(error.status, 0);
    assert.match(error.output, new RegExp(`${server.port}.*in use`, 'i'));
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

function run(args, env = {}) {
  try {
    const output = execFileSync(binary, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], timeout: 30_000, env: { ...process.env, ...env } });
    return { status: 0, output };
  } catch (error) {
    return { status: error.status, output: `${error.stdout}${error.stderr}` };
  }
}

const refusals = [
  ['an unknown flag', ['serve', demo, '--foo'], 2, /unrecognized arguments: --foo/],
  ['a flag we lack', ['serve', demo, '--enable-lora'], 2, /vllm\.c does not support --enable-lora yet/],
  ['tensor parallelism', ['serve', demo, '--tensor-parallel-size', '8'], 2, /does not support --tensor-parallel-size/],
  ['a port that is no number', ['serve', demo, '--port', 'x'], 2, /argument --port: invalid int value: 'x'/],
  ['a model that is not there', ['serve', '/nonexistent/model'], 1, /\/nonexistent\/model/],
  ['a context that does not fit', ['serve', demo, '--kv-cache-memory-bytes', '1m'], 1, /max_model_len|max-model-len/],
  ['a context longer than the model', ['serve', demo, '--max-model-len', '32768'], 1, /greater than the derived max_model_len/],
];
for (const [what, args, status, pattern] of refusals) {
  test(`${what} is refused with its name`, () => {
    const result = run([...args, ...(args.includes('--port') ? [] : ['--port', '0'])]);
    assert.equal(result.status, status, result.output);
    assert.match(result.output, pattern);
  });
}

test('the clients answer one question and end', async () => {
  const server = await Server.start(['--served-model-name', 'demo']);
  try {
    const url = `${server.url}/v1`;
    const chat = run(['chat', '--url', url, '-q', 'What is the capital of Japan?']);
    assert.equal(chat.status, 0, chat.output);
    assert.ok(chat.output.trim().length > 0);
    const complete = run(['complete', '--url', url, '--model-name', 'demo', '-q', 'Once upon a time']);
    assert.equal(complete.status, 0, complete.output);
    assert.ok(complete.output.trim().length > 0);
    const wrong = run(['chat', '--url', url, '--model-name', 'nope', '-q', 'x']);
    assert.equal(wrong.status, 1);
    assert.match(wrong.output, /does not exist/);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('version, help and collect-env print and exit 0', () => {
  for (const [args, pattern] of [
    [['--version'], /^\d+\.\d+\.\d+/],
    [['serve', '--help'], /Config Groups/],
    [['serve', '--help=all'], /--max-num-batched-tokens/],
    [['serve', '--help=SchedulerConfig'], /--scheduling-policy/],
    [['serve', '--help=max-num-seqs'], /--max-num-seqs/],
    [['collect-env'], /CPU/],
  ]) {
    const result = run(args);
    assert.equal(result.status, 0, args.join(' '));
    assert.match(result.output, pattern);
  }
});
