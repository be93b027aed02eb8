// HTTPS: the server's own, and nginx with TLS in front of it. Both stream event by event.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import https from 'node:https';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import tls from 'node:tls';
import { Server, binary, demo, freePort, lacks, parseSse, startProgram, until } from './server.mjs';

const dir = mkdtempSync(path.join(os.tmpdir(), 'vllm-tls-'));
const file = (name) => path.join(dir, name);
const openssl = (...args) => execFileSync('openssl', args, { cwd: dir, stdio: 'pipe' });

before(() => {
  const key = (name) => ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', name];
  openssl('req', '-x509', ...key('key.pem'), '-out', 'cert.pem', '-days', '2', '-subj', '/CN=localhost',
    '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1');
  openssl('req', '-x509', ...key('other.pem'), '-out', 'other-cert.pem', '-days', '2', '-subj', '/CN=other');
  openssl('req', '-x509', ...key('ca-key.pem'), '-out', 'ca.pem', '-days', '2', '-subj', '/CN=authority');
  openssl('req', ...key('client-key.pem'), '-out', 'client.csr', '-subj', '/CN=client');
  openssl('x509', '-req', '-in', 'client.csr', '-CA', 'ca.pem', '-CAkey', 'ca-key.pem', '-CAcreateserial',
    '-days', '2', '-out', 'client.pem');
  openssl('ec', '-in', 'key.pem', '-aes128', '-passout', 'pass:secret', '-out', 'locked.pem');
  writeFileSync(file('junk.pem'), 'no certificate\n');
});
after(() => rmSync(dir, { recursive: true }));

const read = (name) => execFileSync('cat', [file(name)]);

/** One request on its own connection: status, text, how many pieces it came in, and what `onFirst`
 *  found out when the first of them was there. */
function request(port, route, { body, agent = false, onFirst, ...options } = {}) {
  return new Promise((resolve, reject) => {
    const req = https.request({
      host: '127.0.0.1', port, path: route, servername: 'localhost', ca: read('cert.pem'), agent,
      method: body ? 'POST' : 'GET',
      headers: body ? { 'content-type': 'application/json' } : {},
      ...options,
    }, (res) => {
      const answer = { status: res.statusCode, headers: res.headers, text: '', numPieces: 0 };
      res.setEncoding('utf8');
      res.on('data', (piece) => {
        answer.text += piece;
        if (answer.numPieces++ === 0) answer.atFirst = onFirst?.();
      });
      res.on('end', () => resolve(answer));
      res.on('error', reject);
    });
    req.on('error', reject);
    req.end(body && JSON.stringify(body));
  });
}

/** Starts a server that speaks HTTPS. */
async function startSecure(args = [], client = {}) {
  const server = await Server.start(['--ssl-certfile', file('cert.pem'), '--ssl-keyfile', file('key.pem'), ...args],
    { wait: false });
  await until('the server is healthy', 30, async () => {
    if (server.exitCode !== undefined) throw new Error(server.log);
    try {
      return (await request(server.port, '/health', client)).status === 200;
    } catch {
      return false;
    }
  });
  return server;
}

const long = { prompt: 'count:', max_tokens: 1900, ignore_eos: true, temperature: 0, stream: true };

/** The first piece was there while the engine was still at it: nothing on the way waits for the end. */
async function assertStreamed(answer) {
  assert.equal(answer.status, 200);
  const events = parseSse(answer.text);
  assert.equal(events.at(-1), '[DONE]');
  assert.equal(events.at(-2).choices[0].finish_reason, 'length');
  assert.equal(await answer.atFirst, 1, 'requests that ran when the first piece was there');
  assert.ok(answer.numPieces > 50, `${answer.numPieces} pieces for ${events.length} events`);
}

test('direct TLS streams event by event and keeps connections alive', async () => {
  const server = await startSecure();
  try {
    const running = async () => Number(/^vllm:num_requests_running\{.*\} (\S+)$/m.exec((await request(server.port, '/metrics')).text)[1]);
    await assertStreamed(await request(server.port, '/v1/completions', { body: long, onFirst: running }));
    assert.match(server.log, /Starting vLLM server on https:\/\/127\.0\.0\.1:/);

    const agent = new https.Agent({ keepAlive: true, maxSockets: 1 });
    for (let i = 0; i < 3; i++) {
      const answer = await request(server.port, '/v1/completions',
        { body: { prompt: 'x'.repeat(40_000 * i) + 'a', max_tokens: 1, truncate_prompt_tokens: 8 }, agent });
      assert.equal(answer.status, 200, answer.text);
    }
    agent.destroy();

    const { body, status } = await new Promise((resolve, reject) => { // plain HTTP on the same port
      const socket = net.connect(server.port, '127.0.0.1', () => socket.write('GET /health HTTP/1.1\r\nHost: x\r\n\r\n'));
      let text = '';
      socket.on('data', (bytes) => (text += bytes.toString('latin1')));
      socket.on('close', () => resolve({ body: text, status: text.slice(0, 12) }));
      socket.on('error', reject);
    });
    assert.ok(!status.startsWith('HTTP/1.1 200'), body);
    assert.equal((await request(server.port, '/health')).status, 200);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('vllm bench measures an https server, whose streams all end', async () => {
  const server = await startSecure();
  const bench = async (trusted, ...words) => {
    const child = spawn(binary, ['bench', 'serve', '--base-url', `https://localhost:${server.port}`, '--model', demo,
      '--num-prompts', '200', '--max-concurrency', '50', '--input-len', '12', '--output-len', '9', '--ignore-eos',
      '--temperature', '0', ...words], { env: { ...process.env, SSL_CERT_FILE: file(trusted) } });
    let out = '';
    child.stdout.on('data', (bytes) => (out += bytes));
    const [status] = await once(child, 'close');
    return { status, out };
  };
  try {
    for (const words of [['cert.pem'], ['other-cert.pem', '--insecure']]) {
      const { status, out } = await bench(...words);
      assert.equal(status, 0, out);
      assert.match(out, /Successful requests: +200 /);
      assert.match(out, /Total generated tokens: +1800 /);
    }
    const { status, out } = await bench('other-cert.pem');
    assert.equal(status, 1);
    assert.match(out, /Failed requests: +200 /);
    assert.match(out, /certificate is not trusted \(.*\); --insecure accepts any/);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('a client that leaves an encrypted stream frees its request', async () => {
  const server = await startSecure();
  try {
    for (const how of ['end', 'destroy']) {
      const socket = tls.connect({ port: server.port, host: '127.0.0.1', servername: 'localhost', ca: read('cert.pem') });
      await once(socket, 'secureConnect');
      const body = JSON.stringify(long);
      socket.write(`POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n` +
        `Content-Length: ${body.length}\r\n\r\n${body}`);
      await once(socket, 'data');
      socket.on('error', () => {});
      socket[how]();
      await until(`the engine is idle after ${how}`, 2, async () =>
        /vllm:num_requests_running\{[^}]*\} 0/.test((await request(server.port, '/metrics')).text));
    }
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('client certificates are asked for and checked', async () => {
  const mine = { cert: read('client.pem'), key: read('client-key.pem') };
  const server = await startSecure(['--ssl-ca-certs', file('ca.pem'), '--ssl-cert-reqs', '2'], mine);
  try {
    for (let i = 0; i < 2; i++) // the second may resume the session
      assert.equal((await request(server.port, '/v1/models', mine)).status, 200);
    await assert.rejects(request(server.port, '/v1/models'));
    await assert.rejects(request(server.port, '/v1/models', { cert: read('other-cert.pem'), key: read('other.pem') }));
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

const pair = ['--ssl-certfile', 'cert.pem', '--ssl-keyfile', 'key.pem'];
for (const [what, args, message] of [
  ['a certificate that is not there', ['--ssl-certfile', 'none.pem', '--ssl-keyfile', 'key.pem'], /--ssl-certfile .*none\.pem: No such file/],
  ['a key that is not there', ['--ssl-certfile', 'cert.pem', '--ssl-keyfile', 'none.pem'], /--ssl-keyfile .*none\.pem: No such file/],
  ['a certificate that is none', ['--ssl-certfile', 'junk.pem', '--ssl-keyfile', 'key.pem'], /--ssl-certfile .*junk\.pem: no certificate/],
  ['a key that is none', ['--ssl-certfile', 'cert.pem', '--ssl-keyfile', 'junk.pem'], /--ssl-keyfile .*junk\.pem: no private key/],
  ['a key of another certificate', ['--ssl-certfile', 'cert.pem', '--ssl-keyfile', 'other.pem'], /--ssl-keyfile .*other\.pem: no private key .* belongs/],
  ['a key behind a password', ['--ssl-certfile', 'cert.pem', '--ssl-keyfile', 'locked.pem'], /--ssl-keyfile .*locked\.pem: no private key/],
  ['a key without a certificate', ['--ssl-keyfile', 'key.pem'], /--ssl-keyfile needs --ssl-certfile/],
  ['a check without authorities', [...pair, '--ssl-cert-reqs', '1'], /--ssl-cert-reqs 1 needs --ssl-ca-certs/],
  ['authorities that are none', [...pair, '--ssl-ca-certs', 'junk.pem'], /--ssl-ca-certs .*junk\.pem: no certificates/],
  ['unknown ciphers', [...pair, '--ssl-ciphers', 'ROT13'], /--ssl-ciphers ROT13/],
]) {
  test(`${what} ends the start by name`, async () => {
    const server = await Server.start(args.map((arg) => (arg.endsWith('.pem') ? file(arg) : arg)), { wait: false });
    assert.equal(await server.exited, 1, server.log);
    assert.match(server.log, message);
  });
}

test('nginx with TLS in front streams event by event', async (t) => {
  if (lacks(t, 'nginx')) return;
  const server = await Server.start();
  const port = await freePort();
  // Nothing is said about buffering: the stream itself asks nginx not to.
  writeFileSync(file('nginx.conf'), `
    daemon off; worker_processes 1; pid ${file('nginx.pid')}; error_log ${file('error.log')};
    events {}
    http {
      access_log off;
      client_body_temp_path ${file('body')}; proxy_temp_path ${file('proxy')}; fastcgi_temp_path ${file('f')};
      uwsgi_temp_path ${file('u')}; scgi_temp_path ${file('s')};
      server {
        listen 127.0.0.1:${port} ssl;
        ssl_certificate ${file('cert.pem')}; ssl_certificate_key ${file('key.pem')};
        location / { proxy_pass ${server.url}; proxy_http_version 1.1; proxy_set_header Connection ""; }
      }
    }`);
  const nginx = startProgram('nginx', ['-c', file('nginx.conf'), '-p', dir, '-e', file('error.log')], { stdio: 'ignore' });
  try {
    await until('nginx answers', 10, async () => {
      try {
        return (await request(port, '/health')).status === 200;
      } catch {
        return false;
      }
    });
    const running = () => server.metric('vllm:num_requests_running');
    await assertStreamed(await request(port, '/v1/completions', { body: long, onFirst: running }));
    const plain = await request(port, '/v1/completions', { body: { ...long, stream: false } });
    assert.equal(JSON.parse(plain.text).usage.completion_tokens, 1900);

    // A client of the proxy that leaves frees its request too.
    const leaving = https.request({ host: '127.0.0.1', port, path: '/v1/completions', method: 'POST', agent: false,
      servername: 'localhost', ca: read('cert.pem'), headers: { 'content-type': 'application/json' } });
    leaving.on('error', () => {});
    leaving.end(JSON.stringify(long));
    const [response] = await once(leaving, 'response');
    response.on('error', () => {});
    await once(response, 'data');
    leaving.destroy();
    await until('the engine is idle', 2, async () => (await server.metric('vllm:num_requests_running')) === 0);
  } finally {
    await nginx.stop();
    assert.equal(await server.stop(), 0);
  }
});
