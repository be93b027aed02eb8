// Random traffic with random disconnects for SOAK_SECONDS (20 unless set), on a cache too small for
// it: requests are preempted all the time. Afterwards every block is free and neither process has
// grown.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { test } from 'node:test';
import { Server, isSlow, sleep, timeScale, until } from './server.mjs';

const seconds = Number(process.env.SOAK_SECONDS ?? 20);

/** A generator of numbers in [0, 1) that gives the same ones every time. */
function generator(seed) {
  return () => {
    seed = (seed * 1664525 + 1013904223) % 4294967296;
    return seed / 4294967296;
  };
}

function processes(server) {
  const pids = {};
  for (const line of execFileSync('ps', ['--no-headers', '-o', 'pid,args', '--ppid', String(server.pid)], { encoding: 'utf8' }).split('\n')) {
    for (const kind of ['EngineCore', 'APIServer']) if (line.includes(kind)) pids[kind] = Number(line.trim().split(' ')[0]);
  }
  return pids;
}
const rssKib = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]);
const numFiles = (pid) => readdirSync(`/proc/${pid}/fd`).length;

// The longest sequence takes 64 of the 72 blocks; twelve that run side by side soon want more.
const flags = ['--served-model-name', 'demo', '--max-num-seqs', '12', '--num-gpu-blocks-override', '72',
  '--max-model-len', '1024', '--block-size', '16', '--max-num-batched-tokens', '512'];
const variants = [
  ['fcfs', [], false],
  ['priority', ['--scheduling-policy', 'priority', '--max-num-partial-prefills', '2', '--long-prefill-token-threshold', '128'], true],
];
for (const [policy, more, mixesPriorities] of variants) {
  test(`${seconds} s of traffic, preemptions and disconnects under ${policy} leave nothing behind`, { timeout: (seconds + 180) * 1000 * timeScale }, async () => {
    const server = await Server.start([...flags, ...more]);
    try {
      await soak(server, mixesPriorities);
      assert.equal(await server.stop(), 0);
    } finally {
      await server.stop();
    }
  });
}

async function soak(server, mixesPriorities) {
  const random = generator(Number(process.env.SOAK_SEED ?? 7));
  const pick = (low, high) => low + Math.floor(random() * (high - low + 1));
  const counts = { finished: 0, left: 0, choices: 0 };
  const one = async () => {
    const family = pick(0, 5);
    const own = pick(0, 400); // what comes behind the part that its family shares
    const body = {
      model: 'demo',
      prompt: Array.from({ length: pick(1, random() < 0.1 ? 700 : 120) }, (_, i) => 300 + ((i * (family + 3) + (i < 40 ? 0 : own)) % 400)),
      max_tokens: pick(1, random() < 0.5 ? 250 : 60),
      n: random() < 0.3 ? pick(2, 4) : 1,
      temperature: random(),
      ignore_eos: random() < 0.7,
      ...(mixesPriorities && { priority: pick(-2, 2) }),
    };
    const controller = new AbortController();
    const leaves = random() < 0.4;
    const timer = leaves ? setTimeout(() => controller.abort(), pick(0, 600)) : null;
    try {
      const events = await server.stream('/v1/completions', body, { signal: controller.signal });
      assert.equal(events.at(-1), '[DONE]');
      assert.ok(!events.some((event) => event.error), JSON.stringify(events.find((event) => event.error)));
      const ends = events.filter((event) => event.choices?.[0]?.finish_reason);
      assert.equal(ends.length, body.n, 'every choice has one end');
      counts.finished++;
      counts.choices += body.n;
    } catch (error) {
      if (!controller.signal.aborted) throw error;
      counts.left++;
    } finally {
      clearTimeout(timer);
    }
  };
  const traffic = async (until_ms) => {
    while (Date.now() < until_ms) await one();
  };
  const burst = (ms) => Promise.all(Array.from({ length: 24 }, () => traffic(Date.now() + ms)));
  const idle = () => until('everything is free', 30, async () =>
    (await server.metric('vllm:num_requests_running')) === 0 && (await server.metric('vllm:num_requests_waiting')) === 0 &&
    (await server.metric('vllm:kv_cache_usage_perc')) === 0);

  const pids = processes(server);
  await idle(); // the first look at /metrics loads the library that watches GPUs
  await sleep(1000);
  const files = Object.fromEntries(Object.entries(pids).map(([kind, pid]) => [kind, numFiles(pid)]));
  const warmUp_ms = Math.min(seconds * 250, 60_000);
  await burst(warmUp_ms); // pools and tables reach their size
  await idle();
  const before = Object.fromEntries(Object.entries(pids).map(([kind, pid]) => [kind, rssKib(pid)]));
  await burst(seconds * 1000 - warmUp_ms);
  await idle();
  await sleep(300);
  assert.deepEqual(processes(server), pids, 'nobody was restarted');
  const report = [];
  for (const [kind, pid] of Object.entries(pids)) {
    const grown = rssKib(pid) - before[kind];
    report.push(`${kind}: ${before[kind]} KiB, ${grown} KiB more`);
    // Sanitizers keep what was freed for a while.
    if (!isSlow) assert.ok(grown < Math.max(8192, before[kind] * 0.1), `${kind} grew by ${grown} KiB`);
    // The clients' connections stay open until they have been idle for --timeout-keep-alive seconds.
    await until(`${kind} has closed its files`, 60, () => numFiles(pid) <= files[kind] + 8);
  }
  const preemptions = await server.metric('vllm:num_preemptions_total');
  console.log(`${JSON.stringify(counts)}; ${report.join('; ')}; ${preemptions} preemptions; ` +
    `${await server.metric('vllm:generation_tokens_total')} tokens`);
  assert.ok(counts.finished > 0 && counts.left > 0);
  assert.ok(preemptions > 0, 'memory was short');
}
