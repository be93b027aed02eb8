// Starts a real `vllm serve` on a free port of 127.0.0.1, waits until it is healthy, stops it.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import path from 'node:path';
import net from 'node:net';

const here = path.dirname(fileURLToPath(import.meta.url));
export const root = path.resolve(here, '..', '..');
export const binary = process.env.VLLM_BINARY ?? path.join(root, 'build', 'debug', 'vllm');
export const demo = path.join(root, 'models', 'demo');

// The server warns of VLLM_* variables that it does not know.
const { VLLM_BINARY: _, ...environment } = process.env;

/** How much longer than usual things may take: more than 1 in a build with sanitizers. */
export const timeScale = Number(process.env.TEST_TIME_SCALE ?? 1);
/** Whether to ask for less, where the amount proves nothing more. */
export const isSlow = timeScale > 1;

/**
 * What clients are told to use: the platform's fetch, as their newer versions do. node-fetch takes a
 * listener that Debian's Node.js 18 puts on idle sockets for a stream cut short, whatever the server.
 */
export const platformFetch = globalThis.fetch;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The least patience of until(): a busy machine is slow, and nobody waits where all is well. */
const MIN_PATIENCE_S = 60;

/**
 * Polls `condition` (may be async) until it is truthy; fails after `seconds`, or MIN_PATIENCE_S where
 * that is longer, times the scale.
 */
export async function until(what, seconds, condition) {
  const patience = Math.max(seconds, MIN_PATIENCE_S) * timeScale;
  const end = Date.now() + patience * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`gave up after ${patience} s waiting until ${what}`);
    await sleep(20);
  }
}

/** Debian keeps daemons where a user's PATH does not look. */
const programEnv = { ...process.env, PATH: `${process.env.PATH}:/usr/sbin` };

/**
 * Whether the test `t` must end at once because a program that it needs is not installed. That is a
 * failure, which names the program, unless TEST_MAY_LACK_PROGRAMS says that this machine cannot have it:
 * then the test counts as skipped.
 */
export function lacks(t, program) {
  if (spawnSync(program, ['--version'], { env: programEnv, stdio: 'ignore' }).error?.code !== 'ENOENT') return false;
  const reason = `${program} is not installed`;
  if (!process.env.TEST_MAY_LACK_PROGRAMS) throw new Error(`${reason}; scripts/setup installs it`);
  t.skip(reason);
  return true;
}

/** Starts `program`; stop() ends it, also where it has ended by itself. */
export function startProgram(program, args, options) {
  const child = spawn(program, args, { env: programEnv, ...options });
  const ended = once(child, 'exit');
  return {
    stop() {
      child.kill('SIGTERM');
      return ended;
    },
  };
}

/** A port of 127.0.0.1 where nothing listens. */
export async function freePort() {
  const probe = net.createServer();
  probe.listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

/** A started server: url, port, log text so far, pid of the launcher. */
export class Server {
  static async start(args = [], { model = demo, env = {}, wait = true } = {}) {
    const server = new Server();
    server.port = await freePort();
    server.url = `http://127.0.0.1:${server.port}`;
    server.log = '';
    server.process = spawn(
      binary,
      ['serve', model, '--host', '127.0.0.1', '--port', String(server.port), ...args],
      {
        env: { ...environment, VLLM_CPU_KVCACHE_SPACE: '1', ...env },
        stdio: ['ignore', 'pipe', 'pipe'],
      },
    );
    server.pid = server.process.pid;
    for (const stream of [server.process.stdout, server.process.stderr])
      stream.on('data', (bytes) => (server.log += bytes));
    server.exited = once(server.process, 'exit').then(([code, signal]) => {
      server.exitCode = code ?? signal;
      return server.exitCode;
    });
    if (wait) {
      try {
        await until('the server is healthy', 60, () => {
          if (server.exitCode !== undefined)
            throw new Error(`the server ended with ${server.exitCode}`);
          return server.healthy();
        });
      } catch (error) {
        await server.stop();
        throw new Error(`${error.message}\n--- server log ---\n${server.log}`);
      }
    }
    return server;
  }

  async healthy() {
    try {
      return (await fetch(`${this.url}/health`)).status === 200;
    } catch {
      return false;
    }
  }

  /** POSTs JSON; returns {status, headers, body} with the body parsed where it is JSON. */
  async post(route, body, headers = {}) {
    const response = await fetch(this.url + route, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: typeof body === 'string' ? body : JSON.stringify(body),
    });
    const text = await response.text();
    let parsed = text;
    try {
      parsed = JSON.parse(text);
    } catch {
      // not JSON: the caller sees the text
    }
    return { status: response.status, headers: response.headers, body: parsed };
  }

  async get(route, headers = {}) {
    const response = await fetch(this.url + route, { headers });
    return { status: response.status, headers: response.headers, body: await response.text() };
  }

  /** POSTs with stream: true; returns the parsed data events ('[DONE]' as a string). */
  async stream(route, body, { signal } = {}) {
    const response = await fetch(this.url + route, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, stream: true }),
      signal,
    });
    if (response.status !== 200)
      throw new Error(`${route}: ${response.status} ${await response.text()}`);
    return parseSse(await response.text());
  }

  /** The value of a metric summed over its samples whose labels contain `labels`. */
  async metric(name, labels = '') {
    const { body } = await this.get('/metrics');
    let sum = 0;
    let found = false;
    for (const line of body.split('\n')) {
      const match = /^([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)/.exec(line);
      if (match && match[1] === name && (match[2] ?? '').includes(labels)) {
        sum += Number(match[3]);
        found = true;
      }
    }
    if (!found) throw new Error(`no metric ${name}{${labels}}`);
    return sum;
  }

  async stop(signal = 'SIGTERM') {
    if (this.exitCode === undefined) this.process.kill(signal);
    const timer = setTimeout(() => this.process.kill('SIGKILL'), 20_000 * timeScale);
    const code = await this.exited;
    clearTimeout(timer);
    return code;
  }
}

/** The data events of an SSE text. Throws on anything that is not a data line or a comment. */
export function parseSse(text) {
  const events = [];
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith(':')) continue;
    if (!line.startsWith('data: ')) throw new Error(`not an SSE data line: ${line}`);
    const data = line.slice('data: '.length);
    events.push(data === '[DONE]' ? data : JSON.parse(data));
  }
  return events;
}
