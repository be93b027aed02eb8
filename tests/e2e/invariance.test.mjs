// A request is its tokens: the same to the bit alone, in a batch, in any chunks, from the prefix
// cache and after preemption. Log-probabilities are compared as printed, so to the last bit.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Server, isSlow } from './server.mjs';

const story =
  'Once upon a time there was a little dragon named Pip who lived near the forest. ' +
  'He was kind and shy and had always dreamed of the sea, but he had never been there. ' +
  'One day he packed a bag with bread and apples and said goodbye to his friends. Then';
const subjects = [
  ['greedy', { temperature: 0 }],
  ['seeded', { temperature: 1, top_p: 0.9, seed: 7 }],
  ['penalised', { temperature: 0.8, seed: 3, presence_penalty: 0.5, repetition_penalty: 1.2 }],
].map(([name, sampling]) => [
  name,
  {
    model: 'demo',
    prompt: story,
    max_tokens: 48,
    ignore_eos: true,
    logprobs: 3,
    return_token_ids: true,
    ...sampling,
  },
]);

const ask = async (server, body) => {
  const { status, body: answer } = await server.post('/v1/completions', body);
  assert.equal(status, 200, JSON.stringify(answer));
  const [{ text, token_ids, logprobs }] = answer.choices;
  return { text, token_ids, logprobs };
};
const others = (count) =>
  Array.from({ length: count }, (_, i) => ({
    model: 'demo',
    prompt: `${i} is a number and ${'word '.repeat(i * 3)}`,
    max_tokens: 20 + i,
    temperature: i % 3,
    seed: i % 2 ? i : null,
    ignore_eos: true,
  }));

const withServer = async (args, run, options) => {
  const server = await Server.start(['--served-model-name', 'demo', ...args], options);
  try {
    return await run(server);
  } finally {
    assert.equal(await server.stop(), 0, server.log);
  }
};

const alone = new Map();
test('alone, and twice the same', async () => {
  await withServer(['--no-enable-prefix-caching'], async (server) => {
    for (const [name, body] of subjects) {
      alone.set(name, await ask(server, body));
      assert.equal(alone.get(name).token_ids.length, 48);
      assert.deepEqual(await ask(server, body), alone.get(name), name);
    }
  });
});

const crowdSize = isSlow ? 7 : 31;
test(`in a batch of ${crowdSize + 1} with others`, async () => {
  await withServer([], async (server) => {
    for (const [name, body] of subjects) {
      const crowd = others(crowdSize).map((other) => server.post('/v1/completions', other));
      const answer = await ask(server, body);
      for (const one of await Promise.all(crowd)) assert.equal(one.status, 200);
      assert.deepEqual(answer, alone.get(name), name);
    }
  });
});

for (const chunk of [1, 7, 64]) {
  test(`prefilled in chunks of ${chunk}`, async () => {
    await withServer(['--long-prefill-token-threshold', String(chunk), '--no-enable-prefix-caching'],
      async (server) => {
        for (const [name, body] of subjects)
          assert.deepEqual(await ask(server, body), alone.get(name), name);
      });
  });
}

test('with a small token budget, mixed with other prefills', async () => {
  await withServer(['--max-num-batched-tokens', '16', '--max-num-seqs', '8'], async (server) => {
    for (const [name, body] of subjects) {
      const crowd = others(7).map((other) => server.post('/v1/completions', other));
      assert.deepEqual(await ask(server, body), alone.get(name), name);
      await Promise.all(crowd);
    }
  });
});

test('from a cached prefix', async () => {
  await withServer(['--enable-prompt-tokens-details'], async (server) => {
    for (const [name, body] of subjects) {
      await ask(server, body);
      const { body: again } = await server.post('/v1/completions', body);
      const [{ text, token_ids, logprobs }] = again.choices;
      assert.ok(again.usage.prompt_tokens_details.cached_tokens >= 16, 'the prefix was cached');
      assert.deepEqual({ text, token_ids, logprobs }, alone.get(name), name);
    }
  });
});

test('after forced preemption', async () => {
  // Room for about two of these requests: running four preempts some.
  await withServer(['--num-gpu-blocks-override', '20', '--max-model-len', '256'], async (server) => {
    for (const [name, body] of isSlow ? subjects.slice(1, 2) : subjects) {
      const crowd = Array.from({ length: 4 }, (_, i) =>
        server.post('/v1/completions', { ...body, seed: (body.seed ?? 0) + i, max_tokens: 100 }));
      const answer = await ask(server, body);
      for (const one of await Promise.all(crowd)) assert.equal(one.status, 200);
      assert.deepEqual(answer, alone.get(name), name);
    }
    assert.ok((await server.metric('vllm:num_preemptions_total')) > 0, 'something was preempted');
    assert.equal(await server.metric('vllm:kv_cache_usage_perc'), 0);
  });
});

test('several API servers share one engine', async () => {
  await withServer(['--api-server-count', '2'], async (server) => {
    for (const [name, body] of subjects) {
      const answers = await Promise.all(Array.from({ length: isSlow ? 3 : 8 }, () => ask(server, body)));
      for (const answer of answers) assert.deepEqual(answer, alone.get(name), name);
    }
  });
});

for (const isa of ['scalar', 'avx2']) {
  test(`with ${isa} kernels, batched and alone`, async () => {
    await withServer([], async (server) => {
      const [, body] = subjects[0];
      const single = await ask(server, body);
      const crowd = others(isSlow ? 3 : 15).map((other) => server.post('/v1/completions', other));
      assert.deepEqual(await ask(server, body), single);
      await Promise.all(crowd);
      assert.deepEqual(single.token_ids, alone.get('greedy').token_ids);
    }, { env: { VLLM_CPU_ISA: isa } });
  });
}
