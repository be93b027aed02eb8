// Constraints that leave nothing to say: found at admission where that is possible, else while
// generating. Either way the client reads which fields are at odds, and nobody else notices.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Server } from './server.mjs';

const COMPLETIONS = '/v1/completions';
let server, ids;

before(async () => {
  server = await Server.start(['--served-model-name', 'demo']);
  const tokens = async (prompt) => (await server.post('/tokenize', { prompt })).body.tokens;
  ids = { alpha: await tokens('alpha'), beta: await tokens('beta'), eos: await tokens('<|im_end|>') };
  assert.equal(ids.eos.length, 1);
});
after(async () => assert.equal(await server.stop(), 0));

const choice = (...texts) => ({ structured_outputs: { choice: texts } });

test('constraints that no answer can meet are refused with both names', async () => {
  const cases = [
    [{ ...choice('alpha'), allowed_token_ids: ids.beta }, 'structured_outputs', 'allowed_token_ids'],
    [{ ...choice('a', 'bb'), min_tokens: 3 }, 'structured_outputs', 'min_tokens'],
    [{ ...choice('alpha'), bad_words: ['<|im_end|>', '<|endoftext|>'] }, 'structured_outputs', 'bad_words'],
    [{ allowed_token_ids: ids.eos, bad_words: ['<|im_end|>'] }, 'allowed_token_ids', 'bad_words'],
    [{ allowed_token_ids: ids.eos, min_tokens: 1 }, 'allowed_token_ids', 'min_tokens'],
  ];
  for (const [fields, a, b] of cases) {
    for (const stream of [false, true]) {
      const { status, body } = await server.post(COMPLETIONS, { prompt: 'x', max_tokens: 30, stream, ...fields });
      assert.equal(status, 400, JSON.stringify(body));
      assert.equal(body.error.type, 'BadRequestError');
      assert.equal(body.error.param, a);
      assert.ok(body.error.message.startsWith(`${a} and ${b} contradict`), body.error.message);
    }
  }
});

test('allowed tokens that spell a choice give it, and need not name the end of the sequence', async () => {
  const { status, body } = await server.post(COMPLETIONS,
    { prompt: 'x', max_tokens: 30, ...choice('alpha', 'beta'), allowed_token_ids: ids.beta });
  assert.equal(status, 200, JSON.stringify(body));
  assert.equal(body.choices[0].text, 'beta');
  assert.equal(body.choices[0].finish_reason, 'stop');
});

test('a dead end that is met while generating ends that request alone, with its reason', async () => {
  // Of "ab" only "a" can be drawn, and each token that could go on is forbidden behind it.
  const all = await server.post('/tokenize', { prompt: 'ab', return_token_strs: true });
  assert.equal(all.status, 200);
  const a = (await server.post('/tokenize', { prompt: 'a' })).body.tokens;
  const q = (await server.post('/tokenize', { prompt: 'q' })).body.tokens;
  const z = (await server.post('/tokenize', { prompt: 'z' })).body.tokens;
  assert.ok([a, q, z].every((t) => t.length === 1));
  const neighbour = { prompt: 'Once', max_tokens: 200, ignore_eos: true, temperature: 0 };
  const alone = (await server.post(COMPLETIONS, neighbour)).body.choices[0].text;
  const beside = server.post(COMPLETIONS, neighbour);
  // "q" leads nowhere with these tokens, "a" does: at admission the request looks fine.
  const dead = { prompt: 'x', max_tokens: 20, temperature: 0, ...choice('qab', 'aa'),
    allowed_token_ids: [...a, ...q], logit_bias: { [q[0]]: 100 } };
  const whole = await server.post(COMPLETIONS, dead);
  assert.equal(whole.status, 400, JSON.stringify(whole.body));
  assert.equal(whole.body.error.param, 'structured_outputs');
  assert.match(whole.body.error.message, /^structured_outputs and allowed_token_ids leave no token that may come after 2 output tokens/);
  const events = await server.stream(COMPLETIONS, dead);
  assert.equal(events.at(-1), '[DONE]');
  assert.ok(events.length > 2, 'text went out before the error');
  assert.equal(events.at(-2).error.code, 400);
  assert.equal((await beside).body.choices[0].text, alone);
});
