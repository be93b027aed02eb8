// What a client can see of requests and answers: every fault of this kind that servers have had, as a
// rule about what is right. The same cases streamed and not.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { Server, demo, isSlow, sleep, until } from './server.mjs';

const COMPLETIONS = '/v1/completions';
const CHAT = '/v1/chat/completions';
const L = 2048;
const user = (content) => [{ role: 'user', content }];
let server;

before(async () => {
  server = await Server.start(['--served-model-name', 'demo', '--trust-request-chat-template',
    '--enable-prompt-tokens-details', '--max-num-batched-tokens', '512']);
});
after(async () => assert.equal(await server.stop(), 0));

async function ok(route, body, on = server) {
  const answer = await on.post(route, body);
  assert.equal(answer.status, 200, JSON.stringify(answer.body));
  return answer.body;
}

/** Refused with 400, naming the field and holding the phrase; and the server lives. */
async function refused(route, body, param, phrase = '', on = server) {
  const { status, body: answer } = await on.post(route, body);
  assert.equal(status, 400, JSON.stringify(body).slice(0, 300) + JSON.stringify(answer));
  assert.equal(answer.error.code, 400);
  assert.ok(['BadRequestError', 'Bad Request'].includes(answer.error.type), answer.error.type);
  if (param !== undefined) assert.equal(answer.error.param, param, answer.error.message);
  assert.ok(answer.error.message.includes(phrase), `${answer.error.message} lacks ${phrase}`);
  assert.ok(JSON.stringify(answer).length < 4096, 'the error is small');
}

const tokenize = async (body, on = server) => (await ok('/tokenize', body, on)).tokens;
const detokenize = async (tokens) => (await ok('/detokenize', { tokens })).prompt;
const textOf = (events) => events.filter((e) => e !== '[DONE]')
  .map((e) => e.choices[0]?.text ?? e.choices[0]?.delta?.content ?? '').join('');

/** No half of a surrogate pair: writing it as UTF-8 and reading it back changes nothing. */
const isWellFormed = (text) => Buffer.from(text, 'utf8').toString('utf8') === text;

/** The same request both ways: text, tokens and reason must agree; returns the plain answer. */
async function bothWays(route, body) {
  const plain = await ok(route, body);
  const events = await server.stream(route, { ...body, stream_options: { include_usage: true } });
  const choice = plain.choices[0];
  assert.equal(textOf(events), choice.text ?? choice.message.content);
  const chunks = events.filter((e) => e !== '[DONE]');
  assert.deepEqual({ ...chunks.at(-1).usage, prompt_tokens_details: 0 }, { ...plain.usage, prompt_tokens_details: 0 });
  assert.equal(chunks.filter((c) => c.choices[0]).at(-1).choices[0].finish_reason, choice.finish_reason);
  for (const chunk of chunks) {
    const text = chunk.choices[0]?.text ?? '';
    assert.ok(isWellFormed(text) && !text.includes('\ufffd'), JSON.stringify(text));
  }
  return plain;
}

// ---- streams ----

test('a failure before the first byte is plain HTTP, though a stream was asked for', async () => {
  const response = await fetch(server.url + COMPLETIONS, {
    method: 'POST', headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: Array(L + 5).fill(100), stream: true }) });
  assert.equal(response.status, 400);
  assert.match(response.headers.get('content-type'), /^application\/json/);
  assert.equal((await response.json()).error.code, 400);
});

test('usage comes when it is asked for and only then', async () => {
  const body = { model: 'demo', messages: user('hi'), max_tokens: 6, temperature: 0, ignore_eos: true };
  const plain = await ok(CHAT, body);
  for (const options of [undefined, null, {}, { include_usage: false }, { continuous_usage_stats: true }]) {
    const events = (await server.stream(CHAT, { ...body, stream_options: options })).slice(0, -1);
    assert.ok(events.every((e) => !e.usage && e.choices.length === 1), JSON.stringify(options));
  }
  let events = await server.stream(CHAT, { ...body, stream_options: { include_usage: true } });
  assert.equal(events.at(-1), '[DONE]');
  assert.deepEqual(events.at(-2).choices, []);
  assert.equal(events.at(-2).usage.completion_tokens, plain.usage.completion_tokens);
  assert.equal(events.at(-2).usage.total_tokens, plain.usage.total_tokens);
  assert.ok(events.slice(0, -2).every((e) => !e.usage));
  events = (await server.stream(CHAT, { ...body, stream_options: { include_usage: true, continuous_usage_stats: true } })).slice(0, -1);
  const counts = events.map((e) => e.usage.completion_tokens);
  assert.deepEqual(counts, [...counts].sort((a, b) => a - b));
  assert.equal(counts.at(-1), 6);
  await refused(CHAT, { ...body, stream_options: { include_usage: true } }, 'stream_options', 'stream=True');
});

// ---- text and structured output ----

test('characters that are spread over tokens come whole, streamed and not', async () => {
  for (const text of ['🦊語é 👩‍🚀', 'größe', '東京', ' a b  c\n\n', '"quoted" \\ back', '\u0000\u0001']) {
    const body = { prompt: 'say it:', temperature: 0, max_tokens: 64, logprobs: 0, structured_outputs: { choice: [text] } };
    const answer = await bothWays(COMPLETIONS, body);
    assert.equal(answer.choices[0].text, text);
    assert.equal(answer.choices[0].finish_reason, 'stop');
    for (const value of answer.choices[0].logprobs.token_logprobs) assert.ok(Number.isFinite(value));
  }
});

test('a control token spelled by ordinary tokens is text: shown, and it stops nothing', async () => {
  const text = 'x <|im_end|> y';
  for (const skip of [true, false]) {
    const answer = await bothWays(COMPLETIONS, { prompt: 'say:', temperature: 0, max_tokens: 64,
      structured_outputs: { choice: [text] }, skip_special_tokens: skip, return_token_ids: true });
    assert.equal(answer.choices[0].text, text);
    assert.ok(!answer.choices[0].token_ids.slice(0, -1).includes(4091));
  }
});

test('each of several choices can be reached, and nothing else', async () => {
  const choice = ['größe', '東京', '🦊', 'größer', 'a'];
  const seen = new Set();
  for (let seed = 0; seed < 12; seed++) {
    const { choices } = await ok(COMPLETIONS, { prompt: 'w:', n: 8, seed: 1000 * seed, temperature: 2, max_tokens: 40,
      structured_outputs: { choice } });
    for (const { text, finish_reason } of choices) {
      assert.ok(choice.includes(text), JSON.stringify(text));
      assert.equal(finish_reason, 'stop');
      seen.add(text);
    }
  }
  for (const wanted of choice) { // whichever the model would never say, a push in the right direction gives
    const [first] = await tokenize({ prompt: wanted, add_special_tokens: false });
    const { choices } = await ok(COMPLETIONS, { prompt: 'w:', temperature: 0, max_tokens: 40, logit_bias: { [first]: 100 },
      structured_outputs: { choice } });
    seen.add(choices[0].text);
  }
  assert.ok(seen.size >= 4, [...seen].join(' '));
  const one = JSON.stringify({ prompt: 'w:', temperature: 0, max_tokens: 40, structured_outputs: { choice: ['größe'] } });
  const escaped = one.replace('ö', '\\u00f6').replace('ß', '\\u00df');
  assert.equal((await ok(COMPLETIONS, escaped)).choices[0].text, 'größe');
});

test('a constraint holds with stop strings, limits, min_tokens, ignore_eos and chat', async () => {
  const choices = { structured_outputs: { choice: ['alpha beta', 'alpha'] }, temperature: 0, prompt: 'x' };
  const stopped = await bothWays(COMPLETIONS, { ...choices, structured_outputs: { choice: ['alpha beta'] }, stop: [' b'], max_tokens: 30 });
  assert.equal(stopped.choices[0].text, 'alpha');
  assert.equal(stopped.choices[0].stop_reason, ' b');
  const short = await bothWays(COMPLETIONS, { ...choices, max_tokens: 1 });
  assert.equal(short.choices[0].finish_reason, 'length');
  for (const extra of [{ min_tokens: 9 }, { ignore_eos: true }, { n: 3, temperature: 1, seed: 5 }]) {
    const answer = await ok(COMPLETIONS, { ...choices, max_tokens: 30, ...extra });
    for (const choice of answer.choices) {
      assert.ok(['alpha', 'alpha beta'].includes(choice.text), JSON.stringify(choice));
      assert.equal(choice.finish_reason, 'stop');
    }
  }
  const chat = await bothWays(CHAT, { messages: user('yes or no?'), temperature: 0, structured_outputs: { choice: ['yes', 'no'] } });
  assert.ok(['yes', 'no'].includes(chat.choices[0].message.content));
});

test('five thousand choices are compiled and followed', async () => {
  const choice = Array.from({ length: 5000 }, (_, i) => `s${i}`);
  const answer = await ok(COMPLETIONS, { prompt: 'x', max_tokens: 20, structured_outputs: { choice } });
  assert.ok(choice.includes(answer.choices[0].text));
  await refused(COMPLETIONS, { prompt: 'x', structured_outputs: { choice: ['y'.repeat(70_000)] } }, 'structured_outputs');
});

test('other kinds of structured output are refused by name', async () => {
  for (const [form, value] of [['json', {}], ['regex', 'a'], ['grammar', 'root ::= "a"'], ['structural_tag', '{}'], ['json_object', true]])
    await refused(CHAT, { messages: user('x'), structured_outputs: { [form]: value } }, `structured_outputs.${form}`, 'does not support');
  await refused(CHAT, { messages: user('x'), response_format: { type: 'json_object' } }, 'response_format', 'does not support');
});

test('a constrained request goes on where it was after preemption and on a new engine', async () => {
  const [length, numBlocks, maxLen] = isSlow ? [14, '28', '400'] : [40, '100', '1500'];
  const text = Array.from({ length }, (_, i) => `größe ${i} 東京`).join(' ');
  const body = { prompt: 'x '.repeat(40), temperature: 0, structured_outputs: { choice: [text] }, max_tokens: Number(maxLen) - 100 };
  const small = await Server.start(['--num-gpu-blocks-override', numBlocks, '--max-model-len', maxLen, '--no-enable-prefix-caching']);
  try {
    const answers = await Promise.all(Array.from({ length: 4 }, () => ok(COMPLETIONS, body, small)));
    for (const { choices } of answers) assert.equal(choices[0].text, text);
    assert.ok(await small.metric('vllm:num_preemptions_total') > 0);
    const stream = small.stream(COMPLETIONS, body);
    await sleep(150);
    const pid = Number(execFileSync('ps', ['--no-headers', '-o', 'pid,args', '--ppid', String(small.pid)], { encoding: 'utf8' })
      .split('\n').find((line) => line.includes('EngineCore')).trim().split(' ')[0]);
    process.kill(pid, 'SIGKILL');
    assert.equal(textOf(await stream), text);
  } finally {
    assert.equal(await small.stop(), 0);
  }
});

test('prompt text never leaks into the answer when the prompt ends inside a character', async () => {
  const ids = await tokenize({ prompt: 'Graz 🦊', add_special_tokens: false });
  for (let cut = 1; cut < Math.min(4, ids.length); cut++) {
    const prompt = ids.slice(0, -cut);
    const plain = await ok(COMPLETIONS, { prompt, max_tokens: 4, temperature: 0 });
    const text = textOf(await server.stream(COMPLETIONS, { prompt, max_tokens: 4, temperature: 0 }));
    assert.equal(text, plain.choices[0].text);
    assert.ok(!text.includes('Graz'), text);
    assert.equal(plain.usage.prompt_tokens, prompt.length);
  }
});

// ---- stop conditions ----

test('min_tokens holds back end of sequence, stop tokens and stop strings, to the token', async () => {
  const a = await bothWays(COMPLETIONS, { prompt: 'x', temperature: 0, min_tokens: 4, max_tokens: 32, logit_bias: { 4091: 100 } });
  assert.equal(a.usage.completion_tokens, 5);
  assert.equal(a.choices[0].finish_reason, 'stop');
  const [feed] = await tokenize({ prompt: '\n', add_special_tokens: false });
  const b = await bothWays(COMPLETIONS, { prompt: 'List:\n', stop: ['\n'], min_tokens: 8, max_tokens: 16, temperature: 0,
    ignore_eos: true, logit_bias: { [feed]: 100 } });
  assert.equal(b.usage.completion_tokens, 9);
  assert.equal(b.choices[0].finish_reason, 'stop');
  await refused(COMPLETIONS, { prompt: 'x', min_tokens: 9, max_tokens: 8 }, null, 'min_tokens must be less than or equal to max_tokens=8');
});

test('bad words never come, wherever they stand', async () => {
  const body = { prompt: 'The capital of Japan is', max_tokens: 12, temperature: 0 };
  const free = (await ok(COMPLETIONS, body)).choices[0].text;
  const word = free.trim().split(/\W+/)[0];
  const { choices } = await ok(COMPLETIONS, { ...body, bad_words: [word] });
  assert.ok(!new RegExp(`\\b${word}\\b`).test(choices[0].text), `${word}: ${choices[0].text}`);
  await refused(COMPLETIONS, { ...body, bad_words: [''] }, null, 'bad_words cannot contain an empty string');
});

test('a repetition ends the answer with its own reason', async () => {
  const answer = await bothWays(COMPLETIONS, { prompt: 'x', temperature: 0, max_tokens: 40, ignore_eos: true, logit_bias: { 100: 100 },
    repetition_detection: { max_pattern_size: 4, min_count: 5 } });
  assert.equal(answer.usage.completion_tokens, 5);
  assert.equal(answer.choices[0].finish_reason, 'repetition');
  assert.equal(await server.metric('vllm:request_success_total', 'finished_reason="repetition"') >= 2, true);
  await refused(COMPLETIONS, { prompt: 'x', repetition_detection: { max_pattern_size: 4, min_count: 1 } }, 'repetition_detection');
});

test('a text that repeats because it has to ends by its constraint', async () => {
  const { choices } = await ok(COMPLETIONS, { prompt: 'x', temperature: 0, max_tokens: 50, structured_outputs: { choice: ['abab'] } });
  assert.equal(choices[0].text, 'abab');
});

// ---- log-probabilities and echo ----

test('a prompt is scored without generating', async () => {
  const prompt = 'Graz lies on the Mur';
  const body = { prompt, echo: true, max_tokens: 0, logprobs: 1, temperature: 0 };
  const { choices: [choice], usage } = await ok(COMPLETIONS, body);
  assert.equal(choice.text, prompt);
  assert.equal(usage.completion_tokens, 0);
  const { tokens, token_logprobs: values, text_offset: offsets } = choice.logprobs;
  assert.equal(tokens.length, usage.prompt_tokens);
  assert.equal(tokens.join(''), prompt);
  assert.equal(values[0], null);
  assert.ok(values.slice(1).every(Number.isFinite));
  tokens.forEach((_, i) => assert.equal(offsets[i], tokens.slice(0, i).join('').length));
  assert.equal(textOf(await server.stream(COMPLETIONS, body)), prompt);
  assert.equal((await ok(COMPLETIONS, { ...body, logprobs: undefined })).choices[0].logprobs, null);
  await refused(COMPLETIONS, { ...body, echo: false }, 'max_tokens', 'max_tokens must be at least 1, got 0.');
});

test('a warm prefix cache changes nothing about prompt log-probabilities', async () => {
  const small = await Server.start(['--max-num-batched-tokens', '32', '--max-num-seqs', '8', '--enable-prompt-tokens-details']);
  try {
    const ids = (await tokenize({ prompt: 'the quick brown fox jumps over the lazy dog and '.repeat(20) }, small)).slice(0, 83);
    const score = (prompt) => ok(COMPLETIONS, { prompt, echo: true, logprobs: 2, max_tokens: 1, temperature: 0 }, small);
    const [first, second, third] = [await score(ids), await score(ids), await score([...ids.slice(0, -1), 7])];
    assert.equal(first.choices[0].logprobs.tokens.length, 84);
    assert.deepEqual(second.choices, first.choices);
    assert.equal(second.usage.prompt_tokens_details.cached_tokens, 0);
    assert.deepEqual(third.choices[0].logprobs.token_logprobs.slice(0, 82), first.choices[0].logprobs.token_logprobs.slice(0, 82));
  } finally {
    await small.stop();
  }
});

test('listed log-probabilities come in their order, and prompt log-probabilities hold every id', async () => {
  const listed = [4091, 5, 100];
  const chat = await ok(CHAT, { messages: user('hi'), max_tokens: 2, logprobs: true, logprob_token_ids: listed, temperature: 0,
    return_tokens_as_token_ids: true });
  for (const entry of chat.choices[0].logprobs.content)
    assert.deepEqual(entry.top_logprobs.map((t) => t.token), listed.map((id) => `token_id:${id}`));
  await refused(CHAT, { messages: user('hi'), logprob_token_ids: [5] }, 'logprob_token_ids', '`logprobs` must be set');
  await refused(CHAT, { messages: user('hi'), logprobs: true, logprob_token_ids: Array(129).fill(1) }, 'logprob_token_ids', '128');
  await refused(CHAT, { messages: user('hi'), logprobs: true, logprob_token_ids: [4096] }, 'logprob_token_ids', 'out-of-vocab');

  const { choices: [choice] } = await ok(COMPLETIONS, { prompt: [4090, 100, 4091, 4092], prompt_logprobs: 2, max_tokens: 1 });
  assert.equal(choice.prompt_logprobs[0], null);
  [100, 4091, 4092].forEach((id, i) => assert.ok(Number.isFinite(choice.prompt_logprobs[i + 1][id].logprob)));
  await refused(COMPLETIONS, { prompt: 'x', prompt_logprobs: -1 }, 'prompt_logprobs', 'Requested prompt logprobs of 4096');
  await refused(COMPLETIONS, { prompt: 'x', logprobs: 21 }, 'logprobs', 'Requested sample logprobs of 21, which is greater than max allowed: 20');
});

// ---- lengths ----

test('the error says which length is over the limit', async () => withServer(['--max-model-len', '256'], {}, async (small) => {
  const L = 256;
  const taken = (route, body) => ok(route, body, small);
  const rejected = (route, body, param, phrase) => refused(route, body, param, phrase, small);
  const ids = (n) => Array(n).fill(100);
  await rejected(COMPLETIONS, { prompt: ids(L - 48), max_tokens: 100 }, 'input_tokens',
    `maximum context length is ${L} tokens. However, you requested 100 output tokens and your prompt contains ${L - 48} input tokens`);
  const chat = await taken(CHAT, { messages: user('a b '.repeat(80)), temperature: 0, ignore_eos: true });
  assert.equal(chat.choices[0].finish_reason, 'length');
  assert.equal(chat.usage.total_tokens, L);
  await rejected(COMPLETIONS, { prompt: ids(L), max_tokens: 1 }, 'input_tokens');
  const last = await taken(COMPLETIONS, { prompt: ids(L - 1), max_tokens: 1, ignore_eos: true });
  assert.equal(last.usage.completion_tokens, 1);
  assert.equal(last.choices[0].finish_reason, 'length');
  assert.equal((await taken(COMPLETIONS, { prompt: ids(10), ignore_eos: true })).usage.completion_tokens, 16);
  await rejected(COMPLETIONS, { prompt: ids(L - 15) }, 'input_tokens', 'you requested 16 output tokens');
  assert.equal((await taken(COMPLETIONS, { prompt: ids(L - 16), ignore_eos: true })).usage.completion_tokens, 16);
  const newer = await taken(CHAT, { messages: user('x'), max_tokens: 8, max_completion_tokens: 3, ignore_eos: true });
  assert.equal(newer.usage.completion_tokens, 3);
  for (const max_tokens of [0, -1]) await rejected(COMPLETIONS, { prompt: 'x', max_tokens }, 'max_tokens', 'max_tokens must be at least 1');
  for (const raw of ['2.5', '99999999999999999999']) await rejected(COMPLETIONS, `{"prompt":"x","max_tokens":${raw}}`);
  assert.equal((await taken(COMPLETIONS, { prompt: 'x', max_tokens: '8', ignore_eos: true })).usage.completion_tokens, 8);
}));

test('a prompt is cut only when asked, at the side asked for', async () => {
  const ids = Array.from({ length: 50 }, (_, i) => 200 + i);
  for (const [extra, kept] of [[{ truncate_prompt_tokens: 8 }, ids.slice(-8)], [{ truncate_prompt_tokens: 8, truncation_side: 'left' }, ids.slice(-8)],
    [{ truncate_prompt_tokens: 8, truncation_side: 'right' }, ids.slice(0, 8)], [{ truncate_prompt_tokens: 60 }, ids]]) {
    const { choices: [choice] } = await ok(COMPLETIONS, { prompt: ids, max_tokens: 1, return_token_ids: true, ...extra });
    assert.deepEqual(choice.prompt_token_ids, kept);
  }
  const full = await ok(COMPLETIONS, { prompt: Array(3 * L).fill(100), truncate_prompt_tokens: -1, ignore_eos: true });
  assert.deepEqual([full.usage.prompt_tokens, full.usage.completion_tokens], [L - 16, 16]);
  await refused(COMPLETIONS, { prompt: ids, truncate_prompt_tokens: L + 1 }, null, 'truncate_prompt_tokens value');
  await refused(COMPLETIONS, { prompt: ids, truncation_side: 'top' }, 'body.truncation_side');
});

// ---- messages and templates ----

const call = (args) => ({ id: 'c1', type: 'function', function: { name: 'add', arguments: args } });

test('an assistant turn with tool calls and no content is kept, without a word for nothing', async () => {
  const history = (turn) => [...user('2+2?'), { role: 'assistant', ...turn }, { role: 'tool', tool_call_id: 'c1', content: '4' }];
  const prompts = [];
  for (const turn of [{ content: null }, {}, { content: '' }]) {
    const messages = history({ ...turn, tool_calls: [call('{"a":2,"b":2}')] });
    await ok(CHAT, { messages, max_tokens: 1 });
    prompts.push(await detokenize(await tokenize({ messages })));
  }
  assert.equal(new Set(prompts).size, 1);
  assert.ok(!/None|null/.test(prompts[0]) && prompts[0].includes('add'), prompts[0]);
  const empty = await detokenize(await tokenize({ messages: history({ content: null, tool_calls: [call('')] }) }));
  assert.ok(empty.includes('{}'), empty);
  const none = await tokenize({ messages: history({ content: 'x', tool_calls: [] }) });
  assert.deepEqual(none, await tokenize({ messages: history({ content: 'x' }) }));
});

test('content as a list of parts is joined by line feeds, or handed over as it is', async () => {
  const part = (text) => ({ type: 'text', text });
  const messages = [{ role: 'user', content: [part('red'), part('green')] }, { role: 'assistant', content: [part('blu')] }];
  const render = async (chat_template, extra) => detokenize(await tokenize({ messages, chat_template, ...extra }));
  const text = '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}';
  assert.equal(await render(text, { continue_final_message: true, add_generation_prompt: false }), '<user>red\ngreen<assistant>blu');
  const parts = '{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}';
  assert.equal(await render(parts, { add_generation_prompt: false }), '[red][green][blu]');
  const answer = await ok(CHAT, { messages, chat_template: text, continue_final_message: true, add_generation_prompt: false, max_tokens: 2,
    echo: true, temperature: 0 });
  assert.ok(answer.choices[0].message.content.startsWith('blu'), answer.choices[0].message.content);
  for (const content of [[{ type: 'odd' }], [{ type: 'text' }], 5])
    await refused(CHAT, { messages: [...user('a'), { role: 'user', content }] }, undefined, 'messages.1');
  assert.deepEqual(await tokenize({ messages: user([]) }), await tokenize({ messages: user('') }));
  await refused(CHAT, { messages: user('x'), continue_final_message: true, add_generation_prompt: true }, null, 'Cannot set both');
});

test('tool-call arguments reach templates as a mapping, keys in order', async () => {
  const messages = (args) => [{ role: 'assistant', content: null, tool_calls: [{ id: 'c1', type: 'function', function: { name: 'weather', arguments: args } }] }];
  const args = '{"city": "Graz", "days": 3, "opts": {"wind": true}}';
  const a = "{% for c in messages[0].tool_calls %}<call {{ c.function.name }}>{% for k, v in c.function.arguments | items %}<p {{ k }}>{{ v if v is string else v | tojson }}</p>{% endfor %}</call>{% endfor %}";
  const b = '{{ messages[0].tool_calls[0].function.arguments | tojson }}';
  const render = async (chat_template, value) => detokenize(await tokenize({ messages: messages(value), chat_template }));
  for (const value of [args, JSON.parse(args)]) {
    assert.equal(await render(a, value), '<call weather><p city>Graz</p><p days>3</p><p opts>{"wind": true}</p></call>');
    assert.equal(await render(b, value), args);
  }
  for (const bad of ['{"city":', '[1]'])
    await refused(CHAT, { messages: messages(bad) }, undefined, 'arguments');
});

test('tools reach templates as they were sent: order, numbers, nothing escaped', async () => {
  const text = '{"type": "function", "function": {"name": "größe", "description": "Wie groß? <5 & \'ja\' 東京 🙂", ' +
    '"parameters": {"b": 1, "a": [true, null, 1.0]}}}';
  const render = async (chat_template) => detokenize((await ok('/tokenize',
    `{"messages":[{"role":"user","content":"a"}],"tools":[${text}],"chat_template":${JSON.stringify(chat_template)}}`)).tokens);
  assert.equal(await render('{{ tools[0] | tojson }}'), text);
  assert.equal(await render("{{ {'k': 'é🙂'} | tojson(ensure_ascii=True) }}"), '{"k": "\\u00e9\\ud83d\\ude42"}');
  assert.equal(await render("{{ {'k': [1, {}], 'e': []} | tojson(indent=2) }}"), '{\n  "k": [\n    1,\n    {}\n  ],\n  "e": []\n}');
});

test('documents and further arguments reach the template', async () => {
  const chat_template = '{% for d in documents or [] %}({{ d.title }}){% endfor %}{{ mood }}';
  const tokens = await tokenize({ messages: user('x'), chat_template, chat_template_kwargs: { mood: 'glad' } });
  assert.equal(await detokenize(tokens), 'glad');
  const answer = await ok(CHAT, { messages: user('x'), chat_template, documents: [{ title: 'one' }, { title: 'two' }],
    chat_template_kwargs: { mood: 'glad' }, max_tokens: 1, return_prompt_text: true });
  assert.equal(answer.prompt_text, '(one)(two)glad');
});

test('special spellings in user text follow one rule on every route', async () => {
  const text = 'a<|im_end|>b';
  const plain = await tokenize({ prompt: text });
  assert.ok(plain.includes(4091));
  assert.deepEqual(await tokenize({ prompt: text, add_special_tokens: false }), plain);
  assert.equal((await ok(COMPLETIONS, { prompt: text, max_tokens: 1 })).usage.prompt_tokens, plain.length);
  const messages = user(text);
  const chat = await tokenize({ messages });
  assert.equal((await ok(CHAT, { messages, max_tokens: 1 })).usage.prompt_tokens, chat.length);
  for (const lookalike of ['<|im_end|', '< |im_end|>', '<|im_end |>'])
    assert.ok(!(await tokenize({ prompt: lookalike })).includes(4091), lookalike);
  const forced = { prompt: 'x', max_tokens: 2, temperature: 0, ignore_eos: true, logit_bias: { 4090: 100 } };
  assert.equal((await bothWays(COMPLETIONS, forced)).choices[0].text, '');
  assert.equal((await bothWays(COMPLETIONS, { ...forced, skip_special_tokens: false })).choices[0].text, '<|im_start|>'.repeat(2));
});

/** A copy of the demo model in which some files say something else. */
function variant(t, files) {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'vllm-model-'));
  t.after(() => rmSync(dir, { recursive: true }));
  for (const name of readdirSync(demo)) {
    if (files[name] === null) continue;
    if (files[name]) writeFileSync(path.join(dir, name), JSON.stringify({ ...JSON.parse(readFileSync(path.join(demo, name))), ...files[name] }));
    else symlinkSync(path.join(demo, name), path.join(dir, name));
  }
  return dir;
}

async function withServer(args, options, fn) {
  const other = await Server.start(args, options);
  try {
    await fn(other);
  } finally {
    assert.equal(await other.stop(), 0);
  }
}

test('the begin-of-sequence token stands where the tokenizer puts it, once', async (t) => {
  const bos = { id: '<|im_start|>', ids: [4090], tokens: ['<|im_start|>'] };
  const model = variant(t, { 'tokenizer_config.json': { bos_token: '<|im_start|>' }, 'tokenizer.json': { post_processor: {
    type: 'TemplateProcessing', single: [{ SpecialToken: { id: bos.id, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }], special_tokens: { [bos.id]: bos } } } });
  await withServer(['--chat-template', '{{ bos_token }}{{ messages[0].content }}'], { model }, async (other) => {
    const count = async (body) => (await tokenize(body, other)).filter((id) => id === 4090).length;
    assert.equal(await count({ messages: user('hi') }), 1);
    assert.equal(await count({ messages: user('hi'), add_special_tokens: true }), 2);
    assert.equal(await count({ prompt: 'hi' }), 1);
    assert.equal(await count({ prompt: '<|im_start|>hi' }), 2);
    assert.equal(await count({ prompt: '<|im_start|>hi', add_special_tokens: false }), 1);
    const { choices: [choice] } = await ok(COMPLETIONS, { prompt: [4090, 100], max_tokens: 1, return_token_ids: true }, other);
    assert.deepEqual(choice.prompt_token_ids, [4090, 100]);
  });
});

// ---- sampling ----

const huge = '9223372036854775808';
for (const [field, good, bad] of [
  ['top_p', ['1', '0.5', 'null'], ['0', '1.0001', '-0.1', 'NaN', 'Infinity']],
  ['top_k', ['-1', '0', '1', '1000000000', 'null'], ['-2', '1.5', 'NaN']],
  ['min_p', ['0', '1', 'null'], ['1.1', '-0.1', 'Infinity']],
  ['presence_penalty', ['2', '-2', 'null'], ['2.01', '-2.01', 'NaN']],
  ['frequency_penalty', ['2', '-2', 'null'], ['2.01', 'NaN']],
  ['repetition_penalty', ['0.001', '2', 'null'], ['0', '-1', '1e999', 'NaN']],
  ['temperature', ['0', '2', 'null', '0.001'], ['-0.1', '2.1', 'NaN']],
  ['n', ['1', 'null'], ['0', '-1', '1000000', '1.5']],
  ['seed', ['-1', '9223372036854775807', 'null'], [huge, '1.5']],
]) {
  test(`${field}: what is in range is taken, what is not is refused by name, on both routes`, async () => {
    for (const value of [...good, ...bad]) {
      for (const [route, input] of [[COMPLETIONS, '"prompt":"a"'], [CHAT, '"messages":[{"role":"user","content":"a"}]']]) {
        const body = `{${input},"max_tokens":1,"${field}":${value}}`;
        if (good.includes(value)) await ok(route, body);
        else await refused(route, body, undefined, /NaN|Infinity|1e999/.test(value) || value === huge ? '' : field);
      }
    }
    const kinds = await Promise.all([COMPLETIONS, CHAT].map(async (route) => (await server.post(route,
      { prompt: 'a', messages: user('a'), max_tokens: 1, [field]: true })).status));
    assert.equal(kinds[0], kinds[1]);
  });
}

test('a seed gives the same tokens whatever runs beside it', async () => {
  const R = { prompt: 'Once', temperature: 1, top_p: 0.9, seed: 7, max_tokens: isSlow ? 16 : 48, ignore_eos: true, return_token_ids: true };
  const ids = async (body) => (await ok(COMPLETIONS, body)).choices.map((c) => c.token_ids);
  const [alone] = await ids(R);
  assert.deepEqual((await ids(R))[0], alone);
  const others = [...Array(8).fill({ ...R, seed: undefined }), ...Array(4).fill({ ...R, temperature: 0 }), ...Array(4).fill({ ...R, seed: 8 }),
    ...Array(4).fill({ ...R, frequency_penalty: 1 }), ...Array(2).fill({ ...R, structured_outputs: { choice: ['a long text of many words'] } })];
  const together = await Promise.all([...others.slice(0, 11).map(ids), ids(R), ...others.slice(11).map(ids)]);
  assert.deepEqual(together[11][0], alone);
  const unseeded = new Set(together.slice(0, 8).map(JSON.stringify));
  assert.ok(unseeded.size > 1);
  const three = await ids({ ...R, n: 3 });
  assert.deepEqual(await ids({ ...R, n: 3 }), three);
  assert.equal(new Set(three.map(JSON.stringify)).size, 3);
});

test("the model's own defaults are taken, the client's values win, and the operator's are a cap", async (t) => {
  const model = variant(t, { 'generation_config.json': { temperature: 0.6, top_p: 0.95, top_k: 1, repetition_penalty: 1.05, max_new_tokens: 32, unknown_key: [1] } });
  const length = async (other, extra) => (await ok(CHAT, { messages: user('x'), ignore_eos: true, ...extra }, other)).usage.completion_tokens;
  const greedy = async (other, extra) => { // top_k 1 leaves one token whatever the seed
    const texts = new Set();
    for (let seed = 0; seed < 4; seed++)
      texts.add((await ok(COMPLETIONS, { prompt: 'Once', seed, max_tokens: 12, ...extra }, other)).choices[0].text);
    return texts.size === 1;
  };
  await withServer([], { model }, async (other) => {
    assert.equal(await length(other, {}), 32);
    assert.equal(await length(other, { max_tokens: null }), 32);
    assert.equal(await length(other, { max_tokens: 64 }), 64);
    assert.ok(await greedy(other, {}) && await greedy(other, { top_k: null }));
    assert.ok(!(await greedy(other, { top_k: -1, temperature: 2, top_p: 1 })));
    assert.match(other.log, /Default sampling parameters.*'temperature': 0\.6.*'top_k': 1/);
  });
  await withServer(['--generation-config', 'vllm'], { model }, async (other) => {
    assert.ok(!(await greedy(other, {})));
    assert.equal(await length(other, { max_tokens: 40 }), 40);
  });
  await withServer(['--override-generation-config', '{"max_new_tokens":5}'], { model }, async (other) =>
    assert.equal(await length(other, { max_tokens: 64 }), 5));
});

test('every end-of-sequence id ends an answer, from whichever file it comes', async (t) => {
  const force = async (other, id, extra) => (await ok(COMPLETIONS, { prompt: 'x', max_tokens: 8, temperature: 0, logit_bias: { [id]: 100 }, ...extra }, other));
  const check = async (other, ids) => {
    for (const id of ids) {
      const { choices: [choice], usage } = await force(other, id);
      assert.deepEqual([choice.finish_reason, choice.text, usage.completion_tokens], ['stop', '', 1], `${id}`);
      assert.equal((await force(other, id, { ignore_eos: true })).usage.completion_tokens, 8);
    }
  };
  const several = variant(t, { 'generation_config.json': { eos_token_id: [4091, 4089, 77] }, 'config.json': { eos_token_id: 4091 } });
  await withServer(['--override-generation-config', '{"temperature":0.2}'], { model: several }, (other) => check(other, [4091, 4089, 77]));
  const listed = variant(t, { 'generation_config.json': null, 'config.json': { eos_token_id: [4091, 78] } });
  await withServer([], { model: listed }, (other) => check(other, [4091, 78]));
});

// ---- counts ----

test('gauges fall back and aborts are counted; a refused request is no request', async () => {
  const aborted = () => server.metric('vllm:request_success_total', 'finished_reason="abort"');
  const [was, finished] = [await aborted(), await server.metric('vllm:request_success_total')];
  const controllers = Array.from({ length: 4 }, () => new AbortController());
  const streams = controllers.map((c) => server.stream(COMPLETIONS, { prompt: 'x', max_tokens: 1900, ignore_eos: true }, { signal: c.signal }));
  streams.forEach((s) => s.catch(() => {}));
  await until('four run', 5, async () => (await server.metric('vllm:num_requests_running')) === 4);
  controllers.forEach((c) => c.abort());
  await until('they are gone', 2, async () => (await aborted()) === was + 4);
  await refused(COMPLETIONS, { prompt: 'x', top_p: 0 }, 'top_p');
  for (const gauge of ['vllm:num_requests_running', 'vllm:num_requests_waiting', 'vllm:kv_cache_usage_perc'])
    await until(`${gauge} is 0`, 2, async () => (await server.metric(gauge)) === 0);
  assert.equal(await server.metric('vllm:request_success_total'), finished + 4);
});

test('what a prompt found in the cache, and what it put there, is told', async () => {
  const prompt = Array.from({ length: 65 }, (_, i) => 300 + i);
  const details = async () => (await ok(COMPLETIONS, { prompt, max_tokens: 1 })).usage.prompt_tokens_details;
  assert.deepEqual(await details(), { cached_tokens: 0, created_cache_tokens: 64, multimodal_tokens: null });
  assert.deepEqual(await details(), { cached_tokens: 64, created_cache_tokens: 0, multimodal_tokens: null });
});

// ---- HTTP ----

/** Sends bytes as they are; returns what came until the connection ended or a second passed. */
function raw(bytes, { end = true, wait = 1500 } = {}) {
  return new Promise((resolve) => {
    let text = '';
    const socket = net.connect(server.port, '127.0.0.1', () => socket.write(bytes));
    socket.on('data', (data) => {
      text += data.toString('latin1');
      if (end && /\r\n\r\n/.test(text)) setTimeout(() => socket.destroy(), 100);
    });
    socket.on('error', () => {});
    socket.on('close', () => resolve(text));
    setTimeout(() => socket.destroy(), wait);
  });
}

test('a body that is packed is refused by the name of its coding', async () => {
  const response = await fetch(server.url + COMPLETIONS, { method: 'POST', body: gzipSync('{"prompt":"a"}'),
    headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' } });
  assert.equal(response.status, 400);
  assert.match((await response.json()).error.message, /Content-Encoding: 'gzip'/);
  const identity = await server.post(COMPLETIONS, { prompt: 'a', max_tokens: 1 }, { 'content-encoding': 'identity' });
  assert.equal(identity.status, 200);
  assert.equal((await fetch(`${server.url}/v1/models`, { headers: { 'accept-encoding': 'gzip' } })).headers.get('content-encoding'), null);
});

test('UTF-16 is refused, a byte-order mark is not', async () => {
  const head = (n) => `POST ${COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${n}\r\n\r\n`;
  const wide = Buffer.from('{"prompt":"a"}', 'utf16le');
  assert.match(await raw(Buffer.concat([Buffer.from(head(wide.length)), wide])), /^HTTP\/1\.1 400/);
  const marked = Buffer.from('\ufeff{"prompt":"a","max_tokens":1}');
  assert.match(await raw(Buffer.concat([Buffer.from(head(marked.length)), marked])), /^HTTP\/1\.1 200/);
});

test('of repeated keys the last one counts, and huge values are not echoed', async () => {
  const { usage } = await ok(COMPLETIONS, '{"prompt":"a","max_tokens":5,"ignore_eos":true,"max_tokens":2}');
  assert.equal(usage.completion_tokens, 2);
  await refused(COMPLETIONS, { prompt: { k: 'x'.repeat(8_000_000) } });
  await refused(COMPLETIONS, { prompt: 'x', truncation_side: 'y'.repeat(100_000) });
});

test('nesting is limited in bodies and in JSON inside strings', async () => {
  const deep = (n) => '['.repeat(n) + ']'.repeat(n);
  for (const body of [
    `{"messages":[{"role":"user","content":"a","y":${deep(100_000)}}]}`,
    `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":${deep(10_000)}}}`,
    `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":${deep(50_000)}}}}]}`,
    JSON.stringify({ messages: [...user('a'), { role: 'assistant', tool_calls: [call(`{"a":${deep(100_000)}}`)] }] }),
  ]) {
    await refused(CHAT, body, undefined, 'limit of 512 levels');
  }
});

test('Expect: 100-continue is answered before the body, HEAD and OPTIONS without one', async () => {
  const body = '{"prompt":"a","max_tokens":1}';
  const socket = net.connect(server.port, '127.0.0.1');
  let text = '';
  socket.on('data', (data) => (text += data));
  socket.write(`POST ${COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`);
  await until('it says go on', 2, () => text.startsWith('HTTP/1.1 100'));
  socket.write(body);
  await until('it answers', 5, () => text.includes('HTTP/1.1 200'));
  socket.destroy();
  const preflight = await fetch(server.url + CHAT, { method: 'OPTIONS', headers: { origin: 'http://a', 'access-control-request-method': 'POST' } });
  assert.equal(preflight.status, 200);
  assert.equal(preflight.headers.get('access-control-allow-origin'), '*');
  const head = await fetch(`${server.url}/health`, { method: 'HEAD' });
  assert.equal(head.status, 405);
  assert.equal(head.headers.get('allow'), 'GET');
});

// ---- several API servers ----

const children = (launcher) => execFileSync('ps', ['--no-headers', '-o', 'pid,args', '--ppid', String(launcher.pid)], { encoding: 'utf8' })
  .split('\n').filter((line) => line.includes('APIServer')).map((line) => Number(line.trim().split(' ')[0]));

test('several API servers share port, limits and metrics; one that dies takes its own connections alone', async () => {
  await withServer(['--api-server-count', '2', '--max-num-queued-reqs', '6'], {}, async (other) => {
    const body = { prompt: 'x', max_tokens: isSlow ? 250 : 1200, ignore_eos: true, temperature: 0, stream: true };
    const open = () => new Promise((resolve) => { // one connection with a long stream
      const stream = { text: '', done: false };
      const json = JSON.stringify(body);
      const socket = net.connect(other.port, '127.0.0.1', () => socket.write(`POST ${COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n` +
        `Content-Type: application/json\r\nContent-Length: ${json.length}\r\n\r\n${json}`));
      socket.on('data', (data) => {
        stream.text += data;
        resolve(stream);
      });
      socket.on('error', () => {});
      socket.on('close', () => (stream.done = true));
    });
    const streams = await Promise.all(Array.from({ length: 6 }, open));
    assert.ok(streams.every((s) => s.text.startsWith('HTTP/1.1 200')));
    for (let i = 0; i < 8; i++) { // whichever server takes it, all places are taken
      const { status, headers } = await other.post(COMPLETIONS, { prompt: 'x', max_tokens: 1 });
      assert.equal(status, 503);
      assert.ok(headers.get('retry-after'));
    }
    const before = children(other);
    assert.equal(before.length, 2);
    const counted = await other.metric('vllm:generation_tokens_total');
    process.kill(before[0], 'SIGKILL');
    await until('it is back', 5, () => { const now = children(other); return now.length === 2 && !now.includes(before[0]); });
    await until('all streams end', 30, () => streams.every((s) => s.done));
    const whole = streams.filter((s) => s.text.includes('data: [DONE]'));
    const cut = streams.filter((s) => !s.text.includes('data: [DONE]'));
    assert.equal(whole.length + cut.length, 6);
    const answered = Array.from({ length: 20 }, () => other.post(COMPLETIONS, { prompt: 'x', max_tokens: 1 }));
    const statuses = (await Promise.all(answered)).map((a) => a.status);
    assert.ok(statuses.includes(200) && statuses.every((s) => s === 200 || s === 503), `${statuses}`);
    assert.ok(await other.metric('vllm:generation_tokens_total') >= counted, 'counters never fall');
    await until('nothing runs', 5, async () => (await other.metric('vllm:num_requests_running')) === 0);
  });
});
