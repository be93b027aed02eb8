// `vllm plan`: what it prints is what `vllm serve` prints and takes, and what it advises works.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { Server, binary, demo, root } from './server.mjs';

const { VLLM_BINARY: _, ...environment } = process.env;
const models = path.join(root, 'tests', 'fixtures', 'models');

/** Runs the command; returns {status, out, err}. */
function plan(args, env = {}) {
  const result = spawnSync(binary, ['plan', ...args], {
    encoding: 'utf8', env: { ...environment, ...env }, timeout: 30_000,
  });
  return { status: result.status, out: result.stdout, err: result.stderr };
}

function planJson(args, env = {}) {
  const result = plan([...args, '--json'], env);
  assert.ok(result.out.startsWith('{'), result.err + result.out);
  return { ...result, plan: JSON.parse(result.out) };
}

/** A folder with the model's config.json and nothing else. */
function configOnly(model) {
  const dir = mkdtempSync(path.join(tmpdir(), 'vllm-test-'));
  copyFileSync(path.join(model, 'config.json'), path.join(dir, 'config.json'));
  return dir;
}

const large = {
  architectures: ['LlamaForCausalLM'], model_type: 'llama', hidden_size: 4096,
  intermediate_size: 14336, num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8,
  vocab_size: 128256, rms_norm_eps: 1e-5, max_position_embeddings: 131072, torch_dtype: 'bfloat16',
};

test('serve prints the table that plan prints', async () => {
  const flags = ['--max-num-seqs', '12', '--max-model-len', '700', '--block-size', '32'];
  const planned = plan([demo, ...flags], { VLLM_CPU_KVCACHE_SPACE: '1' });
  assert.equal(planned.status, 0, planned.err);
  const server = await Server.start(flags);
  try {
    // How much memory is free changes from moment to moment.
    const table = planned.out.split('\n').filter((line) => !/in all|It fits/.test(line));
    const end = table.findIndex((line) => line.startsWith('Requests that fit'));
    assert.ok(end > 8, planned.out);
    let at = 0;
    for (const line of table.slice(0, end)) {
      at = server.log.indexOf(`] ${line}\n`, at);
      assert.ok(at >= 0, `the log lacks, or has elsewhere: ${line}`);
    }
    assert.ok(server.log.indexOf('Loading weights took') > at, 'the table comes before the weights');
    const tokens = /GPU KV cache size: ([\d,]+) tokens/.exec(server.log)[1].replaceAll(',', '');
    assert.equal(Number(tokens), planJson([demo, ...flags], { VLLM_CPU_KVCACHE_SPACE: '1' }).plan.kv_cache.size_tokens);
  } finally {
    assert.equal(await server.stop(), 0);
  }
});

test('config.json is enough, for every architecture', () => {
  const names = readdirSync(models);
  assert.ok(names.length >= 7);
  for (const name of names) {
    const dir = configOnly(path.join(models, name));
    try {
      const flags = ['--dtype', 'bfloat16', '--skip-tokenizer-init'];
      const bare = planJson([dir, ...flags]);
      const whole = planJson([path.join(models, name), ...flags]);
      assert.equal(bare.status, 0, bare.err);
      assert.match(bare.err, /holds no weights/);
      assert.equal(whole.err, '');
      for (const kind of Object.keys(whole.plan.weights).filter((key) => !/mapped|copied/.test(key)))
        assert.equal(bare.plan.weights[kind], whole.plan.weights[kind], `${name}: ${kind}`);
      assert.deepEqual(bare.plan.workspace, whole.plan.workspace, name);
      assert.equal(bare.plan.kv_cache.bytes_per_token, whole.plan.kv_cache.bytes_per_token);
      assert.equal(bare.plan.weights.other_bytes, 0);
    } finally {
      rmSync(dir, { recursive: true });
    }
  }
});

test('what does not fit comes with flags that fit', () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'vllm-test-'));
  try {
    writeFileSync(path.join(dir, 'config.json'), JSON.stringify(large));
    const gpu = ['--gpu-memory', '24G'];
    const refused = planJson([dir, ...gpu]);
    assert.equal(refused.status, 1);
    assert.equal(refused.plan.fits, false);
    assert.match(refused.plan.problem, /16\.00 GiB KV cache is needed/);
    assert.ok(refused.plan.remedies.length > 0);
    for (const { flags } of refused.plan.remedies) {
      const better = planJson([dir, ...gpu, ...flags.split(' ')]);
      assert.equal(better.status, 0, `${flags}: ${better.plan.problem}`);
      assert.equal(better.plan.fits, true);
      assert.ok(better.plan.memory.planned_bytes <= 24 * 2 ** 30);
    }
    const roomy = planJson([dir, '--gpu-memory', '141G']).plan;
    assert.equal(roomy.fits, true);
    assert.equal(roomy.kv_cache.bytes_per_token, 2 * 32 * 8 * 128 * 2);
    assert.equal(roomy.weights.total_bytes, roomy.weights.copied_bytes);
    const text = plan([dir, '--gpu-memory', '10G']);
    assert.equal(text.status, 1);
    assert.match(text.out, /Does not fit: .*No flags make it fit/s);
  } finally {
    rmSync(dir, { recursive: true });
  }
});

test('a GPU is planned for as serve allocates on it, with and without one', (t) => {
  const flags = ['--max-num-seqs', '64', '--max-model-len', '1024'];
  const given = planJson([demo, '--gpu-memory', '100G', ...flags]);
  assert.equal(given.status, 0, given.err);
  assert.equal(given.plan.device, 'cuda');
  assert.equal(given.plan.kv_cache.dtype, 'bfloat16');
  assert.ok(given.plan.graph_bytes > 0);
  assert.ok(given.plan.workspace.products_bytes >= 2 ** 25);
  assert.ok(given.plan.host_bytes > given.plan.pinned_host_bytes);
  const eager = planJson([demo, '--gpu-memory', '100G', '--enforce-eager', ...flags]).plan;
  assert.equal(eager.graph_bytes, 0);
  const half = planJson([demo, '--gpu-memory', '100G', '--dtype', 'half', ...flags]).plan;
  assert.equal(half.kv_cache.dtype, 'float16');
  assert.equal(half.weights.total_bytes, given.plan.weights.total_bytes);
  const refused = plan([demo, '--gpu-memory', '100G', '--dtype', 'float32']);
  assert.equal(refused.status, 1);
  assert.match(refused.err, /not supported on a GPU/);
  const here = planJson([demo, ...flags]);
  if (here.plan?.device !== 'cuda') {
    t.diagnostic('no GPU here: its own plan is not compared');
    return;
  }
  const same = planJson([demo, '--gpu-memory', String(here.plan.memory.total_bytes), ...flags]).plan;
  for (const part of ['weights', 'workspace', 'graph_bytes', 'host_bytes', 'pinned_host_bytes'])
    assert.deepEqual(same[part], here.plan[part], part);
});

test('half the cache holds half the requests', () => {
  const at = (bytes) => planJson([demo, '--kv-cache-memory-bytes', String(bytes)]).plan;
  const half = at(2 ** 26);
  const whole = at(2 ** 27);
  assert.equal(whole.kv_cache.num_blocks, 2 * half.kv_cache.num_blocks);
  for (const [i, { num_tokens, num_requests }] of whole.max_concurrency.entries()) {
    assert.equal(half.max_concurrency[i].num_tokens, num_tokens);
    assert.equal(num_requests, 2 * half.max_concurrency[i].num_requests);
  }
});

test('mistakes are named', () => {
  for (const [args, status, message] of [
    [['/no/such/model'], 1, /was not found/],
    [[demo, '--device', 'gpu'], 2, /needs --gpu-memory/],
    [[demo, '--device', 'cpu', '--gpu-memory', '1G'], 2, /--host-memory/],
    [[demo, '--gpu-memory', '1G', '--host-memory', '1G'], 2, /exclude each other/],
    [[demo, '--gpu-memory', 'much'], 2, /gpu-memory/],
    [[demo, '--gpu-memory', '0'], 2, /gpu-memory/],
    [[demo, '--no-such-flag'], 2, /unrecognized arguments/],
    [[demo, '--max-model-len', '5000000'], 1, /max_model_len/],
  ]) {
    const result = plan(args);
    assert.equal(result.status, status, args.join(' ') + result.err + result.out);
    assert.match(result.err, message);
    assert.equal(result.out, '');
  }
  assert.match(plan(['--help']).out, /--gpu-memory.*vllm serve --help/s);
});

test('a CPU machine is planned for wherever the command runs', () => {
  // How much memory is free changes from moment to moment.
  const table = (flags, device) => {
    const env = { VLLM_CPU_KVCACHE_SPACE: '1', VLLM_TARGET_DEVICE: device };
    const result = plan([demo, ...flags], env);
    assert.equal(result.status, 0, result.err);
    return result.out.replace(/.* free$/gm, '');
  };
  for (const flags of [['--host-memory', '8G'], ['--device', 'cpu']])
    assert.equal(table(flags, 'cuda'), table(flags, 'cpu'));
});
