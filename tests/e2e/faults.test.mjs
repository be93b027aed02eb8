// What goes wrong in production: clients that leave, engines that die, bodies that lie.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Server, demo, isSlow, sleep, timeScale, until } from './server.mjs';

let server;
before(async () => (server = await Server.start(['--served-model-name', 'demo', '--max-num-seqs', '8'])));
after(async () => assert.equal(await server.stop(), 0));

const alive = async () => {
  assert.ok(await server.healthy());
  const answer = await server.post('/v1/completions', { model: 'demo', prompt: 'x', max_tokens: 1 });
  assert.equal(answer.status, 200);
};
const idle = () =>
  until('the engine is idle', 20, async () =>
    (await server.metric('vllm:num_requests_running')) === 0 &&
    (await server.metric('vllm:num_requests_waiting')) === 0 &&
    (await server.metric('vllm:kv_cache_usage_perc')) === 0);

/** Sends raw bytes; returns all that comes back until the server closes or `ms` pass. */
const raw = (bytes, { ms = 3000, half = false } = {}) =>
  new Promise((resolve) => {
    let got = '';
    const socket = net.connect(server.port, '127.0.0.1', () => (half ? socket.end(bytes) : socket.write(bytes)));
    socket.on('data', (data) => (got += data));
    socket.on('error', () => resolve(got));
    socket.on('close', () => resolve(got));
    setTimeout(() => socket.destroy(), ms * timeScale).unref();
  });
const request = (body, headers = 'Content-Type: application/json\r\n') =>
  `POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n${headers}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;

/** Pids of a launcher's processes of one kind; none once it is gone, where ps fails. */
const childrenOf = (launcher, kind) => spawnSync('ps', ['--no-headers', '-o', 'pid,args', '--ppid', String(launcher.pid)], { encoding: 'utf8' }).stdout
  .split('\n').filter((line) => line.includes(kind)).map((line) => Number(line.trim().split(' ')[0]));

const long = { model: 'demo', prompt: 'Once upon a time', max_tokens: 1500, ignore_eos: true };
const bodies = [
  // The first of all requests: the engine still reads what its tokens are made of.
  ['waiting for a grammar', '/v1/completions', { ...long, structured_outputs: { choice: ['north ', 'south '].map((one) => one.repeat(400)) } }, 1],
  ['streamed', '/v1/completions', { ...long, stream: true }, 1],
  ['unstreamed', '/v1/completions', long, 1],
  ['n of 4', '/v1/completions', { ...long, n: 4, stream: true }, 4],
  ['two prompts', '/v1/completions', { ...long, prompt: ['a', 'b'] }, 2],
  ['chat', '/v1/chat/completions', { model: 'demo', messages: [{ role: 'user', content: 'hi' }], max_tokens: 1500, ignore_eos: true }, 1],
  ['mid-prefill', '/v1/completions', { ...long, prompt: Array(1900).fill(40), max_tokens: 100 }, 1],
];
const isShort = (what) => ['mid-prefill', 'waiting for a grammar'].includes(what);
for (const [what, route, body, count] of bodies) {
  for (const how of ['FIN', 'RST']) {
    test(`a client that leaves (${what}, ${how}) frees its requests`, async () => {
      const text = JSON.stringify(body);
      const leave = (after) => new Promise((resolve) => {
        const socket = net.connect(server.port, '127.0.0.1', () =>
          socket.write(`POST ${route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`));
        socket.on('error', resolve);
        setTimeout(() => {
          if (how === 'RST') socket.resetAndDestroy();
          else socket.end();
          resolve();
        }, after);
      });
      const aborted = () => server.metric('vllm:request_success_total', 'finished_reason="abort"');
      const before = await aborted();
      // A busy server may not have read the request when its client is gone again.
      for (let ms = isShort(what) ? 20 : 200; (await aborted()) === before; ms *= 2) {
        assert.ok(ms < 5000, 'no abort was counted');
        await leave(ms);
        await idle();
      }
      assert.equal(((await aborted()) - before) % count, 0);
    });
  }
}

test('a client that leaves while it waits behind a full batch frees its place', async () => {
  const aborted = () => server.metric('vllm:request_success_total', 'finished_reason="abort"');
  const before = await aborted();
  const controllers = Array.from({ length: 12 }, () => new AbortController());
  const streams = controllers.map((one) =>
    server.stream('/v1/completions', long, { signal: one.signal }).catch(() => null));
  await until('some wait', 30, async () => (await server.metric('vllm:num_requests_waiting')) === 4);
  for (const one of controllers) one.abort();
  await Promise.all(streams);
  await idle();
  await until('the aborts are counted', 10, async () => (await aborted()) === before + 12);
  await alive();
});

test('an engine that is killed comes back, and streams go on as if nothing happened', async () => {
  const body = { model: 'demo', prompt: 'Once upon a time', max_tokens: 400, ignore_eos: true, temperature: 1, seed: 11 };
  const text = (events) => events.filter((e) => e !== '[DONE]').map((e) => e.choices[0]?.text ?? '').join('');
  const undisturbed = text(await server.stream('/v1/completions', body));
  const engine = () => childrenOf(server, 'EngineCore')[0];
  const before = await server.metric('vllm:generation_tokens_total');
  const streams = [0, 1, 2].map(() => server.stream('/v1/completions', body));
  const plain = server.post('/v1/completions', body);
  await until('tokens flow', 60, async () => (await server.metric('vllm:generation_tokens_total')) > before + 40);
  const first = engine();
  process.kill(first, 'SIGKILL');
  for (const stream of streams) assert.equal(text(await stream), undisturbed);
  assert.equal((await plain).body.choices[0].text, undisturbed);
  assert.notEqual(engine(), first);
  await until('healthy again', 20, () => server.healthy());
  await alive();
});

test('an engine that is stopped is unhealthy until it runs again', async () => {
  const [pid] = childrenOf(server, 'EngineCore');
  process.kill(pid, 'SIGSTOP');
  try {
    await until('health says so', 10, async () => (await server.get('/health')).status === 503);
    assert.equal((await server.get('/metrics')).status, 200);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await until('healthy again', 20, () => server.healthy());
  await alive();
});

for (const [what, forGood] of [
  ['cannot start again', async (other, model) => {
    writeFileSync(path.join(model, 'config.json'), '{}');
    process.kill(childrenOf(other, 'EngineCore')[0], 'SIGKILL');
  }],
  ['dies again and again before it is ready', async (other, model) => {
    // Whoever opens a pipe that nobody writes waits: no engine is ready before it is killed.
    rmSync(path.join(model, 'config.json'));
    execFileSync('mkfifo', [path.join(model, 'config.json')]);
    await until('the launcher gives up', 60, () => {
      for (const pid of childrenOf(other, 'EngineCore')) {
        try {
          process.kill(pid, 'SIGKILL');
        } catch {
          // gone already
        }
      }
      return /5 times in a row before it was ready; stopping/.test(other.log);
    });
  }],
]) {
  test(`an engine that ${what} ends every request with an error, and the program`, { timeout: 240_000 }, async () => {
    const model = mkdtempSync(path.join(os.tmpdir(), 'vllm-model-'));
    cpSync(demo, model, { recursive: true });
    const other = await Server.start(['--served-model-name', 'demo'], { model });
    try {
      const chat = { model: 'demo', messages: [{ role: 'user', content: 'hi' }], max_tokens: 1900, ignore_eos: true };
      const streams = [other.stream('/v1/completions', { ...long, max_tokens: 1900 }), other.stream('/v1/completions', { ...long, max_tokens: 1900, n: 2 }),
        other.stream('/v1/chat/completions', chat)];
      const plain = [other.post('/v1/completions', { ...long, max_tokens: 1900 }), other.post('/v1/chat/completions', chat)];
      await until('all run', 30, async () => (await other.metric('vllm:num_requests_running')) === 6);
      await forGood(other, model);
      for (const events of await Promise.all(streams)) {
        assert.equal(events.at(-1), '[DONE]');
        const { error } = events.at(-2);
        assert.equal(error.code, 500);
        assert.equal(error.type, 'InternalServerError');
        assert.match(error.message, /engine is dead/);
        assert.ok(events.slice(0, -2).every((e) => e.choices && !e.choices[0].finish_reason), 'nothing else ends it');
      }
      for (const { status, body } of await Promise.all(plain)) {
        assert.equal(status, 500);
        assert.equal(body.error.code, 500);
        assert.match(body.error.message, /engine is dead/);
      }
      assert.equal(await other.exited, 1);
      assert.match(other.log, /stopping/);
    } finally {
      await other.stop();
      rmSync(model, { recursive: true });
    }
  });
}

const nested = '['.repeat(100_000) + ']'.repeat(100_000);
const table = [
  ['an empty body', request(''), 400],
  ['a body that is a list', request('[]'), 400],
  ['a body that is a number', request('5'), 400],
  ['a trailing comma', request('{"model":"demo","prompt":"a",}'), 400],
  ['trailing bytes', request('{"model":"demo","prompt":"a"}{}'), 400],
  ['half a surrogate pair', request('{"model":"demo","prompt":"\\ud83e"}'), 400],
  ['bytes that are not UTF-8', Buffer.concat([Buffer.from('POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n{"model":"demo","prompt":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}')]), 400],
  ['nesting without end', request(`{"model":"demo","x":${'['.repeat(200_000)}`), 400],
  ['deep nesting', request(`{"model":"demo","prompt":"a","x":${nested}}`), 400],
  ['NaN', request('{"model":"demo","prompt":"a","top_p":NaN}'), 400],
  ['a number too large', request('{"model":"demo","prompt":"a","max_tokens":99999999999999999999}'), 400],
  ['no content type', request('{"model":"demo","prompt":"a"}', ''), 400],
  ['text/plain', request('{"model":"demo","prompt":"a"}', 'Content-Type: text/plain\r\n'), 400],
  ['an upper-case JSON type', request('{"model":"demo","prompt":"a","max_tokens":1}', 'Content-Type: APPLICATION/JSON; charset=utf-8\r\n'), 200],
  ['a NUL within a string', request('{"model":"demo","prompt":"a\\u0000b","max_tokens":1}'), 200],
  ['a byte-order mark', request('\ufeff{"model":"demo","prompt":"a","max_tokens":1}'), [200, 400]],
  ['an unknown path', 'GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', 404],
  ['a wrong method', 'GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', 405],
  ['both lengths', 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 400],
  ['a huge chunk', 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n{}', [400, 413]],
  ['no HTTP', 'what is this\r\n\r\n', 400],
  ['an unknown method', 'BREW /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', 501],
  ['a head without an end', `GET /${'a'.repeat(5 << 20)}`, 400],
];
for (const [what, bytes, status] of table) {
  test(`${what}: ${status}`, async () => {
    const answer = await raw(bytes);
    const [, code] = /^HTTP\/1\.1 (\d+)/.exec(answer) ?? assert.fail(`no answer: ${answer.slice(0, 200)}`);
    assert.ok([status].flat().includes(Number(code)), answer.slice(0, 400));
    if (Number(code) >= 400) {
      assert.ok(answer.length < 8192, 'the error is small');
      const { error } = JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4));
      assert.equal(error.code, Number(code));
      assert.ok(error.message.length > 0 && error.type.length > 0);
    }
    await alive();
  });
}

test('a chunked body, one byte a chunk, is served', async () => {
  const body = JSON.stringify({ model: 'demo', prompt: 'a', max_tokens: 1 });
  const chunks = [...body].map((c) => `1\r\n${c}\r\n`).join('');
  const answer = await raw(`POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n${chunks}0\r\n\r\n`);
  assert.match(answer, /^HTTP\/1\.1 200/);
});

test('a body above the limit is answered with 413 and not kept in memory', async () => {
  const size = 400 * 1024 * 1024;
  const [front] = childrenOf(server, 'APIServer');
  const rss = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${front}/status`, 'utf8'))[1]);
  const before = rss();
  const answer = await new Promise((resolve) => {
    let got = '';
    const socket = net.connect(server.port, '127.0.0.1', () => {
      socket.write(`POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${size}\r\n\r\n`);
      socket.write(Buffer.alloc(size, 0x20));
    });
    socket.on('data', (data) => (got += data));
    socket.on('error', () => resolve(got));
    socket.on('close', () => resolve(got));
    setTimeout(() => socket.destroy(), 20_000 * timeScale).unref();
  });
  assert.match(answer, /^HTTP\/1\.1 413/);
  assert.equal(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)).error.code, 413);
  await until('its line in the access log', 10, () => /INFO: +127\.0\.0\.1:\d+ - "- HTTP\/1\.1" 413 Request Entity Too Large/.test(server.log));
  // Sanitizers keep what was freed for a while.
  if (!isSlow) assert.ok(rss() - before < 200 * 1024, 'it was not gathered');
  await alive();
});

test('a body that only announces more than the limit is answered before a byte of it', async () => {
  for (const expects of ['', 'Expect: 100-continue\r\n']) {
    const answer = await raw(`POST /v1/completions HTTP/1.1\r\nHost: x\r\n${expects}Content-Type: application/json\r\n` +
      `Content-Length: ${400 << 20}\r\n\r\n`, { ms: 20_000 });
    assert.match(answer, /^HTTP\/1\.1 413 /);
    assert.equal(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)).error.code, 413);
  }
  await alive();
});

test('a hundred clients that leave at odd moments leave nothing behind', async () => {
  const pids = execFileSync('ps', ['--no-headers', '-o', 'pid', '--ppid', String(server.pid)], { encoding: 'utf8' })
    .trim().split('\n').map(Number);
  assert.equal(pids.length, 2);
  const rssKib = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]);
  const numFiles = (pid) => readdirSync(`/proc/${pid}/fd`).length;
  const leave = async (count) => {
    for (let i = 0; i < count; i++) {
      const controller = new AbortController();
      const stream = server.stream('/v1/completions', { ...long, n: 1 + (i % 3) }, { signal: controller.signal }).catch(() => null);
      await sleep(i % 7);
      controller.abort();
      await stream;
    }
    await idle();
    await alive();
  };
  await leave(100); // what is made once and kept
  const before = pids.map((pid) => ({ files: numFiles(pid), rss: rssKib(pid) }));
  await leave(100);
  for (const [i, pid] of pids.entries()) {
    // One or two connections are kept for the next request, and it is not always the same number.
    await until(`process ${pid} has closed its files`, 20, () => numFiles(pid) <= before[i].files + 2);
    // Sanitizers keep what was freed for a while.
    if (!isSlow) assert.ok(rssKib(pid) - before[i].rss < 8 * 1024, `grew by ${rssKib(pid) - before[i].rss} KiB`);
  }
});

test('SIGTERM ends a running stream with a reason, never with silence', async () => {
  const other = await Server.start(['--served-model-name', 'demo']);
  try {
    const stream = other.stream('/v1/completions', long);
    await until('it runs', 20, async () => (await other.metric('vllm:num_requests_running')) === 1);
    const code = other.stop();
    const events = await stream;
    assert.equal(events.at(-1), '[DONE]');
    const last = events.at(-2);
    assert.ok(last.error || last.choices?.[0]?.finish_reason === 'abort', JSON.stringify(last));
    assert.equal(await code, 0);
  } finally {
    await other.stop();
  }
});

test('with a drain time SIGTERM lets a stream finish', async () => {
  const other = await Server.start(['--served-model-name', 'demo', '--shutdown-timeout', '20']);
  try {
    const stream = other.stream('/v1/completions', { ...long, max_tokens: 200 });
    await until('it runs', 20, async () => (await other.metric('vllm:num_requests_running')) === 1);
    const code = other.stop();
    const events = await stream;
    assert.equal(events.at(-2).choices[0].finish_reason, 'length');
    assert.equal(await code, 0);
  } finally {
    await other.stop();
  }
});
