// Streams over time, and what is told about them: comments that keep them alive, clients that never
// read, the lines of the log, the load of all API servers together.
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Server, demo, until } from './server.mjs';

let server;
before(async () => {
  server = await Server.start(['--served-model-name', 'demo', '--sse-keep-alive-interval', '1', '--max-num-seqs', '64',
    '--enable-log-requests', '--enable-server-load-tracking', '--api-server-count', '2', '--max-log-len', '12'],
  { env: { VLLM_LOGGING_LEVEL: 'DEBUG' } });
});
after(async () => assert.equal(await server.stop(), 0));

const post = (body) => {
  const text = JSON.stringify({ model: 'demo', ...body });
  return `POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n\r\n${text}`;
};

test('a request is logged with its parameters, and with as much of its prompt as is allowed', async () => {
  const { body } = await server.post('/v1/completions',
    { model: 'demo', prompt: 'a prompt that goes on', max_tokens: 3, temperature: 0.5, seed: 7, request_id: 'of-the-log' });
  assert.equal(body.id, 'cmpl-of-the-log');
  await until('its lines are there', 10, () => /Request cmpl-of-the-log details/.test(server.log));
  assert.match(server.log, /Received request cmpl-of-the-log: params: SamplingParams\(n=1, .*temperature=0\.5, .*seed=7, max_tokens=3, .*num_prompt_tokens: \d+, lora_request: None\./);
  assert.match(server.log, /Request cmpl-of-the-log details: prompt: 'a prompt tha'/);
});

test('silence in a stream is filled with comments, which no event holds', async () => {
  // Of an engine that stands still a stream has nothing to say.
  const pid = Number([...server.log.matchAll(/\(EngineCore pid=(\d+)\)/g)].at(-1)[1]);
  process.kill(pid, 'SIGSTOP');
  const socket = net.connect(server.port, '127.0.0.1');
  let got = '';
  socket.on('data', (bytes) => (got += bytes));
  socket.write(post({ prompt: 'x', max_tokens: 2, stream: true }));
  await until('two comments have come', 60, () => got.split(': keep-alive\n\n').length > 2);
  assert.ok(!got.includes('data:'), 'nothing was generated');
  process.kill(pid, 'SIGCONT');
  await until('the answer is there', 60, () => got.includes('data: [DONE]'));
  assert.match(got, /content-type: text\/event-stream/i);
  socket.destroy();
});

test('the load is that of all API servers', async () => {
  const load = async () => JSON.parse((await server.get('/load')).body).server_load;
  await until('nothing runs', 20, async () => (await load()) === 0);
  const sockets = Array.from({ length: 12 }, () => {
    const socket = net.connect(server.port, '127.0.0.1', () =>
      socket.write(post({ prompt: 'x', max_tokens: 1900, ignore_eos: true, stream: true })));
    socket.on('error', () => {});
    socket.resume();
    return socket;
  });
  await until('all are counted, whoever is asked', 30, async () => (await load()) === 12);
  for (let i = 0; i < 8; i++) { // each on a connection of its own: both servers answer
    const answer = await server.get('/load', { connection: 'close' });
    assert.equal(JSON.parse(answer.body).server_load, 12);
  }
  for (const socket of sockets) socket.destroy();
  await until('none is left', 20, async () => (await load()) === 0);
});

test('a client that never reads is cut off, and its request is freed', { timeout: 240_000 }, async () => {
  const before_ = await server.metric('vllm:request_success_total', 'finished_reason="abort"');
  const socket = net.connect({ port: server.port, host: '127.0.0.1' });
  let closed = false;
  socket.pause();
  socket.on('error', () => (closed = true));
  socket.on('close', () => (closed = true));
  // Far more text than the buffers on the way hold.
  socket.write(post({ prompt: 'x', n: 48, seed: 1, temperature: 1, max_tokens: 1900, ignore_eos: true, stream: true, logprobs: 20 }));
  await until('the server gives it up', 150, () => /the client has read nothing for 60 s and \d+ bytes wait: cut off/.test(server.log));
  await until('its requests are counted as aborted or done, and none is left', 20, async () =>
    (await server.metric('vllm:num_requests_running')) === 0 && (await server.metric('vllm:num_requests_waiting')) === 0);
  assert.ok((await server.metric('vllm:request_success_total', 'finished_reason="abort"')) >= before_);
  socket.resume();
  await until('the connection is gone', 20, () => closed);
  assert.equal((await server.post('/v1/completions', { model: 'demo', prompt: 'x', max_tokens: 1 })).status, 200);
});

test("templates in files have names, and a trusted request may ask for one", async () => {
  const model = mkdtempSync(path.join(os.tmpdir(), 'vllm-templates-'));
  cpSync(demo, model, { recursive: true });
  const config = JSON.parse(readFileSync(path.join(model, 'tokenizer_config.json'), 'utf8'));
  delete config.chat_template;
  writeFileSync(path.join(model, 'tokenizer_config.json'), JSON.stringify(config));
  writeFileSync(path.join(model, 'chat_template.jinja'), '{% for m in messages %}D:{{ m.content }}{% endfor %}');
  mkdirSync(path.join(model, 'additional_chat_templates'));
  writeFileSync(path.join(model, 'additional_chat_templates', 'tool_use.jinja'), 'T:{{ tools[0].function.name }}');
  writeFileSync(path.join(model, 'additional_chat_templates', 'rag.jinja'), 'R:{{ messages[0].content }}');
  const other = await Server.start(['--served-model-name', 'demo', '--trust-request-chat-template'], { model });
  try {
    const prompt = async (extra) => {
      const { status, body } = await other.post('/v1/chat/completions/render', { messages: [{ role: 'user', content: 'hi' }], ...extra });
      return status === 200 ? body.prompt : body.error.message;
    };
    const tools = [{ type: 'function', function: { name: 'look', parameters: {} } }];
    assert.equal(await prompt({}), 'D:hi');
    assert.equal(await prompt({ chat_template: 'rag' }), 'R:hi');
    assert.equal(await prompt({ chat_template: 'default', tools, tool_choice: 'none' }), 'D:hi');
    assert.equal(await prompt({ tools, tool_choice: 'none' }), 'T:look');
    assert.equal(await prompt({ chat_template: 'own {{ messages[0].content }}' }), 'own hi');
  } finally {
    await other.stop();
    rmSync(model, { recursive: true });
  }
});
