// The demo model through HTTP gives exactly what an independent implementation computed in float32;
// on a GPU, which computes in bfloat16, as far as rounding cannot have turned a choice.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import path from 'node:path';
import { Server, demo } from './server.mjs';

const { cases } = JSON.parse(readFileSync(path.join(demo, 'expected.json'), 'utf8'));
let server;
const isRounded = process.env.VLLM_TARGET_DEVICE === 'cuda';
const tolerance = isRounded ? 0.15 : 1e-3;
const isCertain = (one) => !isRounded || one.smallest_margin > 2 * tolerance;

before(async () => (server = await Server.start(['--served-model-name', 'demo'])));
after(async () => assert.equal(await server.stop(), 0));

const bodyOf = (one) => ({
  model: 'demo',
  messages: one.messages,
  ...(one.tools ? { tools: one.tools, tool_choice: 'none' } : {}),
  ...(one.chat_template_kwargs ? { chat_template_kwargs: one.chat_template_kwargs } : {}),
});

for (const one of cases) {
  const name = one.messages.at(-1).content;

  test(`prompt tokens: ${name}`, async () => {
    const { tool_choice, ...body } = bodyOf(one);
    const answer = await server.post('/tokenize', body);
    assert.equal(answer.status, 200);
    assert.deepEqual(answer.body.tokens, one.prompt_token_ids);
  });

  test(`greedy tokens: ${name}`, async () => {
    const answer = await server.post('/v1/chat/completions', {
      ...bodyOf(one),
      temperature: 0,
      max_tokens: 48,
      return_token_ids: true,
      skip_special_tokens: true,
    });
    assert.equal(answer.status, 200, JSON.stringify(answer.body));
    const [choice] = answer.body.choices;
    assert.deepEqual(answer.body.prompt_token_ids, one.prompt_token_ids);
    if (!isCertain(one)) return;
    assert.deepEqual(choice.token_ids, one.output_token_ids);
    assert.equal(choice.finish_reason, one.finish_reason);
    assert.equal(choice.message.content, one.text);
  });

  test(`log-probabilities of the first step: ${name}`, async () => {
    const answer = await server.post('/v1/completions', {
      model: 'demo',
      prompt: one.prompt_token_ids,
      temperature: 0,
      max_tokens: 1,
      logprobs: isRounded ? 20 : 10,
      return_tokens_as_token_ids: true,
    });
    assert.equal(answer.status, 200, JSON.stringify(answer.body));
    const top = answer.body.choices[0].logprobs.top_logprobs[0];
    // The reference has logits: their differences are differences of log-probabilities.
    const best = one.first_step_top10[0];
    for (const { id, logit } of one.first_step_top10) {
      const got = top[`token_id:${id}`];
      assert.ok(got !== undefined, `token ${id} is among the ten likeliest`);
      const gap = got - top[`token_id:${best.id}`];
      const expected = logit - best.logit;
      // Of a larger difference rounding takes more.
      const allowed = isRounded ? tolerance * (1 - expected / 16) : tolerance;
      assert.ok(Math.abs(gap - expected) < allowed, `token ${id}: ${gap} for ${expected}`);
    }
  });
}

test('the streamed text of every case is the plain one', async () => {
  for (const one of cases.filter(isCertain)) {
    const events = await server.stream('/v1/chat/completions', {
      ...bodyOf(one),
      temperature: 0,
      max_tokens: 48,
    });
    assert.equal(events.at(-1), '[DONE]');
    const text = events
      .filter((event) => event !== '[DONE]')
      .map((event) => event.choices[0]?.delta?.content ?? '')
      .join('');
    assert.equal(text, one.text);
  }
});
