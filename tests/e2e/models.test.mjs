// Every architecture through HTTP, the scheduler and the prefix cache: what an independent
// implementation computed, alone and side by side, the second time from cached blocks. Prompts are
// longer than the windows of models that slide, so blocks go back while requests run.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import path from 'node:path';
import { Server, root } from './server.mjs';

const names = ['gemma2', 'gemma3_text', 'phi3', 'phi3_longrope', 'olmo2', 'qwen3_moe', 'mixtral'];
const flags = ['--max-model-len', '256', '--max-num-seqs', '8', '--max-num-batched-tokens', '64'];

const complete = (server, name, body) =>
  server.post('/v1/completions', {
    model: name,
    temperature: 0,
    ignore_eos: true,
    return_token_ids: true,
    ...body,
  });

for (const name of names) {
  test(`${name} continues as the reference does`, async () => {
    const model = path.join(root, 'tests', 'fixtures', 'models', name);
    const expected = JSON.parse(readFileSync(path.join(model, 'expected.json'), 'utf8'));
    const cache = ['--kv-cache-memory-bytes', '4M', '--served-model-name', name];
    const server = await Server.start([...flags, ...cache], { model, env: { VLLM_TARGET_DEVICE: 'cpu' } });
    try {
      for (const { prompt, prompt_ids, output_ids, text } of expected.text) {
        const answer = await complete(server, name, { prompt, max_tokens: output_ids.length });
        assert.equal(answer.status, 200, JSON.stringify(answer.body));
        const [choice] = answer.body.choices;
        assert.deepEqual(choice.prompt_token_ids, prompt_ids);
        assert.deepEqual(choice.token_ids, output_ids);
        assert.equal(choice.text, text);
      }
      for (let turn = 0; turn < 2; turn++) {
        const answers = await Promise.all(
          expected.prompts.map(({ input_ids, greedy }) =>
            complete(server, name, { prompt: input_ids, max_tokens: greedy.token_ids.length }),
          ),
        );
        answers.forEach(({ status, body }, i) => {
          assert.equal(status, 200, JSON.stringify(body));
          assert.deepEqual(body.choices[0].token_ids, expected.prompts[i].greedy.token_ids);
        });
      }
    } finally {
      assert.equal(await server.stop(), 0);
    }
  });
}
