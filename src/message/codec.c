// Messages as MessagePack arrays.
//
// Written by msgpack-c's packer straight into the frame; read by a cursor that believes no length
// (reader.h). Arrays of numbers travel as one bin of little-endian elements: a prompt of 100,000
// tokens is then a copy and a check, not 100,000 small objects.
//
// ADD        [2, request_id, external_id, client_index, priority, arrival_time_ns, prompt bin,
// output bin,
//             cache_salt bin, pooling, sampling]
// pooling    [type, use_activation, dimensions]
// sampling   [temperature, top_p, min_p, top_k, presence, frequency, repetition, seed, max_tokens,
//             min_tokens, eos_token_id, stop ids bin, bias ids bin, biases bin, allowed ids bin,
//             bad words bin, automaton bin, logprob ids bin, num_logprobs, num_prompt_logprobs]
// OUTPUTS    [17, engine_index, timestamp_ns, [output ...]]
// output     [request_id, new ids bin, nil | [logprobs ...], first_prompt_logprob,
//             [logprobs ...], vector bin, finish_reason, refusal kind, its tokens, its limit,
//             stop_token_id, num_cached_tokens, num_preemptions, queued_ns, scheduled_ns,
//             first_token_ns, last_token_ns]
// logprobs   [ids bin, logprobs bin, rank]
// history    the numbers of visit_history() in one array
#include "message/codec.h"

#include <assert.h>
#include <float.h>
#include <math.h>

#include <msgpack.h>

#include "base/memory.h"
#include "message/reader.h"

enum {
    // No context is longer, and no vocabulary larger.
    MAX_TOKENS = 1 << 24,
    MAX_VOCAB = 1 << 22,
    MAX_IDS = 1 << 20,     // of one ABORT
    MAX_OUTPUTS = 1 << 20, // of one step
    MAX_DUMP_TEXT_BYTES = 4096,
    MAX_CACHE_SALT_BYTES = 1 << 20,
    MAX_DIMENSIONS = 1 << 20,

    ADD_LEN = 11,
    POOLING_LEN = 3,
    SAMPLING_LEN = 20,
    OUTPUTS_LEN = 4,
    OUTPUT_LEN = 17,
    LOGPROBS_LEN = 3,

    // Smallest encodings, for counts that the frame's size must bear out.
    MIN_OUTPUT_BYTES = 1 + OUTPUT_LEN + 2, // its bins have a length byte besides their heads
    MIN_LOGPROBS_BYTES = 1 + LOGPROBS_LEN + 2,
};

// ---- writing -------------------------------------------------------------------------------

static int write_to_buf(void *context, const char *bytes, size_t len)
{
    buf_append(context, (struct str){bytes, len});
    return 0;
}

static void pack_bytes(msgpack_packer *pk, const void *bytes, size_t len)
{
    msgpack_pack_bin(pk, len);
    msgpack_pack_bin_body(pk, bytes, len);
}

static void pack_bool(msgpack_packer *pk, bool value)
{
    if (value)
        msgpack_pack_true(pk);
    else
        msgpack_pack_false(pk);
}

/** `count` numbers of `size` bytes, little-endian. */
static void pack_elements(msgpack_packer *pk, const void *elements, int32_t count, size_t size)
{
    assert(count >= 0);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    pack_bytes(pk, elements, (size_t)count * size);
#else
    const char *from = elements;
    msgpack_pack_bin(pk, (size_t)count * size);
    for (int32_t i = 0; i < count; i++) {
        for (size_t j = size; j-- > 0;)
            msgpack_pack_bin_body(pk, from + (size_t)i * size + j, 1);
    }
#endif
}

static void pack_token_ids(msgpack_packer *pk, const int32_t *ids, int32_t num_ids)
{
    pack_elements(pk, ids, num_ids, sizeof(*ids));
}

static void pack_logit_bias(msgpack_packer *pk, const struct sampling_params *s)
{
    int32_t ids[MAX_LOGIT_BIAS];
    float biases[MAX_LOGIT_BIAS];
    CHECK(s->num_logit_bias >= 0 && s->num_logit_bias <= MAX_LOGIT_BIAS);
    for (int32_t i = 0; i < s->num_logit_bias; i++) {
        ids[i] = s->logit_bias[i].token_id;
        biases[i] = s->logit_bias[i].bias;
    }
    pack_token_ids(pk, ids, s->num_logit_bias);
    pack_elements(pk, biases, s->num_logit_bias, sizeof(biases[0]));
}

static void pack_sampling(msgpack_packer *pk, const struct sampling_params *s)
{
    msgpack_pack_array(pk, SAMPLING_LEN);
    msgpack_pack_float(pk, s->temperature);
    msgpack_pack_float(pk, s->top_p);
    msgpack_pack_float(pk, s->min_p);
    msgpack_pack_int32(pk, s->top_k);
    msgpack_pack_float(pk, s->presence_penalty);
    msgpack_pack_float(pk, s->frequency_penalty);
    msgpack_pack_float(pk, s->repetition_penalty);
    msgpack_pack_uint64(pk, s->seed);
    msgpack_pack_int32(pk, s->max_tokens);
    msgpack_pack_int32(pk, s->min_tokens);
    msgpack_pack_int32(pk, s->eos_token_id);
    pack_token_ids(pk, s->stop_token_ids, s->num_stop_token_ids);
    pack_logit_bias(pk, s);
    pack_token_ids(pk, s->allowed_token_ids, s->num_allowed_token_ids);
    pack_elements(pk, s->bad_words, s->num_bad_word_ints, sizeof(*s->bad_words));
    pack_elements(pk, s->automaton, s->num_automaton_words, sizeof(*s->automaton));
    pack_token_ids(pk, s->logprob_token_ids, s->num_logprob_token_ids);
    msgpack_pack_int32(pk, s->num_logprobs);
    msgpack_pack_int32(pk, s->num_prompt_logprobs);
}

static void pack_request(msgpack_packer *pk, const struct engine_core_request *request)
{
    msgpack_pack_array(pk, ADD_LEN);
    msgpack_pack_int32(pk, MESSAGE_ADD);
    msgpack_pack_uint64(pk, request->request_id);
    msgpack_pack_uint64(pk, request->external_id);
    msgpack_pack_int32(pk, request->client_index);
    msgpack_pack_int64(pk, request->priority);
    msgpack_pack_int64(pk, request->arrival_time_ns);
    pack_token_ids(pk, request->prompt_token_ids, request->num_prompt_tokens);
    pack_token_ids(pk, request->output_token_ids, request->num_output_tokens);
    pack_bytes(pk, request->cache_salt.ptr, request->cache_salt.len);
    msgpack_pack_array(pk, POOLING_LEN);
    msgpack_pack_int32(pk, (int32_t)request->pooling.type);
    pack_bool(pk, request->pooling.use_activation);
    msgpack_pack_int32(pk, request->pooling.dimensions);
    pack_sampling(pk, &request->sampling);
}

static void pack_logprobs(msgpack_packer *pk, const struct token_logprobs *logprobs, int32_t num)
{
    msgpack_pack_array(pk, (size_t)num);
    for (int32_t i = 0; i < num; i++) {
        msgpack_pack_array(pk, LOGPROBS_LEN);
        pack_token_ids(pk, logprobs[i].token_ids, logprobs[i].num_entries);
        pack_elements(pk, logprobs[i].logprobs, logprobs[i].num_entries, sizeof(float));
        msgpack_pack_int32(pk, logprobs[i].rank);
    }
}

static void pack_output(msgpack_packer *pk, const struct engine_core_output *output)
{
    msgpack_pack_array(pk, OUTPUT_LEN);
    msgpack_pack_uint64(pk, output->request_id);
    pack_token_ids(pk, output->new_token_ids, output->num_new_tokens);
    if (output->logprobs)
        pack_logprobs(pk, output->logprobs, output->num_new_tokens);
    else
        msgpack_pack_nil(pk);
    msgpack_pack_int32(pk, output->first_prompt_logprob);
    pack_logprobs(pk, output->prompt_logprobs, output->num_prompt_logprobs);
    pack_elements(pk, output->pooled, output->num_pooled, sizeof(*output->pooled));
    msgpack_pack_int32(pk, (int32_t)output->finish_reason);
    msgpack_pack_int32(pk, (int32_t)output->refusal.kind);
    msgpack_pack_int32(pk, output->refusal.num_tokens);
    msgpack_pack_int32(pk, output->refusal.limit);
    msgpack_pack_int32(pk, output->stop_token_id);
    msgpack_pack_int32(pk, output->num_cached_tokens);
    msgpack_pack_int32(pk, output->num_preemptions);
    msgpack_pack_int64(pk, output->queued_ns);
    msgpack_pack_int64(pk, output->scheduled_ns);
    msgpack_pack_int64(pk, output->first_token_ns);
    msgpack_pack_int64(pk, output->last_token_ns);
}

static void pack_outputs(msgpack_packer *pk, const struct engine_core_outputs *outputs)
{
    msgpack_pack_array(pk, OUTPUTS_LEN);
    msgpack_pack_int32(pk, MESSAGE_OUTPUTS);
    msgpack_pack_int32(pk, outputs->engine_index);
    msgpack_pack_int64(pk, outputs->timestamp_ns);
    msgpack_pack_array(pk, (size_t)outputs->num_outputs);
    for (int32_t i = 0; i < outputs->num_outputs; i++)
        pack_output(pk, &outputs->outputs[i]);
}

// ---- histories: one list of fields for both directions ----

/** Writes numbers when it has a packer, else reads them. */
struct history_visitor {
    msgpack_packer *pk;
    struct reader *r;
};

static void visit_i64(const struct history_visitor *v, int64_t *value, int64_t min, int64_t max)
{
    if (v->pk)
        msgpack_pack_int64(v->pk, *value);
    else
        *value = reader_int(v->r, "history", min, max);
}

static void visit_i32(const struct history_visitor *v, int32_t *value, int32_t min, int32_t max)
{
    int64_t wide = *value;
    visit_i64(v, &wide, min, max);
    *value = (int32_t)wide;
}

static void visit_u64(const struct history_visitor *v, uint64_t *value)
{
    if (v->pk)
        msgpack_pack_uint64(v->pk, *value);
    else
        *value = reader_u64(v->r, "history");
}

static void visit_count(const struct history_visitor *v, int64_t *value)
{
    visit_i64(v, value, 0, INT64_MAX);
}

static void visit_history(const struct history_visitor *v, struct request_history *h)
{
    visit_u64(v, &h->request_id);
    visit_u64(v, &h->external_id);
    int32_t state = (int32_t)h->state, reason = (int32_t)h->finish_reason;
    visit_i32(v, &state, 0, NUM_REQUEST_STATES - 1);
    visit_i32(v, &reason, FINISH_REASON_NONE, FINISH_REASON_ERROR);
    h->state = (enum request_state)state;
    h->finish_reason = (enum finish_reason)reason;
    int32_t *const counts[] = {&h->num_prompt_tokens, &h->num_output_tokens, &h->num_cached_tokens,
                               &h->num_ahead,         &h->num_running_ahead, &h->num_preemptions,
                               &h->num_chunks};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        visit_i32(v, counts[i], 0, INT32_MAX);
    int64_t *const wide[] = {&h->now_ns,         &h->queued_ns,       &h->scheduled_ns,
                             &h->first_token_ns, &h->last_token_ns,   &h->finished_ns,
                             &h->num_intervals,  &h->sum_interval_ns, &h->min_interval_ns,
                             &h->max_interval_ns};
    for (size_t i = 0; i < ARRAY_LEN(wide); i++)
        visit_count(v, wide[i]);
    for (size_t i = 0; i < NUM_HOLD_REASONS; i++)
        visit_count(v, &h->num_held_steps[i]);
    for (int32_t i = 0; i < min_i32(h->num_preemptions, MAX_HISTORY_PREEMPTIONS); i++) {
        struct preemption *p = &h->preemptions[i];
        visit_count(v, &p->step);
        visit_count(v, &p->at_ns);
        visit_count(v, &p->resumed_ns);
        visit_u64(v, &p->by_request_id);
        visit_u64(v, &p->by_external_id);
        visit_i32(v, &p->num_lost_tokens, 0, INT32_MAX);
    }
    for (int32_t i = 0; i < min_i32(h->num_chunks, MAX_HISTORY_CHUNKS); i++) {
        struct prefill_chunk *c = &h->chunks[i];
        visit_count(v, &c->step);
        visit_count(v, &c->at_ns);
        visit_i32(v, &c->first_token, 0, INT32_MAX);
        visit_i32(v, &c->num_tokens, 0, INT32_MAX);
    }
}

/** How many numbers visit_history() visits. */
static size_t history_len(const struct request_history *h)
{
    return 21 + NUM_HOLD_REASONS +
           6 * (size_t)min_i32(h->num_preemptions, MAX_HISTORY_PREEMPTIONS) +
           4 * (size_t)min_i32(h->num_chunks, MAX_HISTORY_CHUNKS);
}

static void pack_histories(msgpack_packer *pk, const struct message *m)
{
    msgpack_pack_array(pk, 3);
    msgpack_pack_int32(pk, MESSAGE_HISTORIES);
    msgpack_pack_int64(pk, m->histories.call_id);
    msgpack_pack_array(pk, (size_t)m->histories.num_histories);
    for (int32_t i = 0; i < m->histories.num_histories; i++) {
        struct request_history history = m->histories.histories[i]; // visiting writes to it
        msgpack_pack_array(pk, history_len(&history));
        visit_history(&(struct history_visitor){.pk = pk}, &history);
    }
}

static void read_histories(struct reader *r, struct message *m, struct arena *arena)
{
    const int32_t max_len =
        21 + NUM_HOLD_REASONS + 6 * MAX_HISTORY_PREEMPTIONS + 4 * MAX_HISTORY_CHUNKS;
    m->histories.call_id = reader_int(r, "call_id", INT64_MIN, INT64_MAX);
    int32_t num = reader_array(r, "histories", 0, MAX_HISTORIES, 1 + 21 + NUM_HOLD_REASONS);
    struct request_history *histories = arena_calloc(arena, (size_t)num, sizeof(*histories));
    for (int32_t i = 0; i < num && reader_ok(r); i++) {
        int32_t len = reader_array(r, "history", 21 + NUM_HOLD_REASONS, max_len, 1);
        visit_history(&(struct history_visitor){.r = r}, &histories[i]);
        if (reader_ok(r) && (size_t)len != history_len(&histories[i]))
            reader_fail(r, "history", "%d numbers, expected %zu", len, history_len(&histories[i]));
    }
    m->histories.num_histories = num;
    m->histories.histories = histories;
}

/** A message of a kind and up to two integers. */
static void pack_small(msgpack_packer *pk, enum message_kind kind, int32_t num, int64_t a,
                       int64_t b)
{
    msgpack_pack_array(pk, (size_t)num + 1);
    msgpack_pack_int32(pk, (int32_t)kind);
    if (num > 0)
        msgpack_pack_int64(pk, a);
    if (num > 1)
        msgpack_pack_int64(pk, b);
}

void message_encode(struct buf *out, const struct message *m)
{
    msgpack_packer pk;
    msgpack_packer_init(&pk, out, write_to_buf);
    switch (m->kind) {
    case MESSAGE_HELLO:
        pack_small(&pk, m->kind, 2, m->hello.version, m->hello.client_index);
        break;
    case MESSAGE_ADD:
        pack_request(&pk, &m->add);
        break;
    case MESSAGE_ABORT:
        msgpack_pack_array(&pk, 2);
        msgpack_pack_int32(&pk, MESSAGE_ABORT);
        pack_elements(&pk, m->abort.ids, m->abort.num_ids, sizeof(uint64_t));
        break;
    case MESSAGE_RESET_PREFIX_CACHE:
        pack_small(&pk, m->kind, 1, m->reset_prefix_cache.call_id, 0);
        break;
    case MESSAGE_DUMP_RECORDING:
        pack_small(&pk, m->kind, 1, m->dump_recording.call_id, 0);
        break;
    case MESSAGE_FIND_REQUEST:
        msgpack_pack_array(&pk, 3);
        msgpack_pack_int32(&pk, MESSAGE_FIND_REQUEST);
        msgpack_pack_int64(&pk, m->find_request.call_id);
        msgpack_pack_uint64(&pk, m->find_request.external_id);
        break;
    case MESSAGE_WELCOME:
        msgpack_pack_array(&pk, 4);
        msgpack_pack_int32(&pk, MESSAGE_WELCOME);
        msgpack_pack_int32(&pk, m->welcome.version);
        msgpack_pack_int32(&pk, m->welcome.generation);
        msgpack_pack_int32(&pk, m->welcome.num_losses);
        break;
    case MESSAGE_OUTPUTS:
        pack_outputs(&pk, &m->outputs);
        break;
    case MESSAGE_REPLY:
        msgpack_pack_array(&pk, 3);
        msgpack_pack_int32(&pk, MESSAGE_REPLY);
        msgpack_pack_int64(&pk, m->reply.call_id);
        pack_bool(&pk, m->reply.ok);
        break;
    case MESSAGE_DUMPED:
        msgpack_pack_array(&pk, 4);
        msgpack_pack_int32(&pk, MESSAGE_DUMPED);
        msgpack_pack_int64(&pk, m->dumped.call_id);
        pack_bool(&pk, m->dumped.ok);
        pack_bytes(&pk, m->dumped.text.ptr, m->dumped.text.len);
        break;
    case MESSAGE_HISTORIES:
        pack_histories(&pk, m);
        break;
    }
}

// ---- reading -------------------------------------------------------------------------------

static void read_logit_bias(struct reader *r, struct sampling_params *s, struct arena *arena)
{
    int32_t num_ids, num_biases;
    const int32_t *ids = reader_token_ids(r, "logit_bias ids", MAX_LOGIT_BIAS, arena, &num_ids);
    const float *biases =
        reader_floats(r, "logit_bias", MAX_LOGIT_BIAS, -INFINITY, INFINITY, arena, &num_biases);
    if (num_ids != num_biases)
        reader_fail(r, "logit_bias", "%d token ids and %d biases", num_ids, num_biases);
    if (!reader_ok(r) || num_ids == 0)
        return;
    struct logit_bias *pairs = arena_array(arena, struct logit_bias, num_ids);
    for (int32_t i = 0; i < num_ids; i++)
        pairs[i] = (struct logit_bias){ids[i], biases[i]};
    s->num_logit_bias = num_ids;
    s->logit_bias = pairs;
}

/** Lengths must be borne out by what follows them. */
static void read_bad_words(struct reader *r, struct sampling_params *s, struct arena *arena)
{
    s->bad_words =
        reader_token_ids(r, "bad_words", MAX_BAD_WORD_INTS, arena, &s->num_bad_word_ints);
    for (int32_t i = 0; reader_ok(r) && i < s->num_bad_word_ints; i += 1 + s->bad_words[i]) {
        if (s->bad_words[i] < 1 || s->bad_words[i] > s->num_bad_word_ints - 1 - i)
            reader_fail(r, "bad_words", "a word of %d tokens before the last %d", s->bad_words[i],
                        s->num_bad_word_ints - 1 - i);
    }
}

static void read_automaton(struct reader *r, struct sampling_params *s, struct arena *arena)
{
    s->automaton = reader_u32s(r, "automaton", MAX_AUTOMATON_WORDS, arena, &s->num_automaton_words);
    struct error why = {0};
    if (reader_ok(r) && s->num_automaton_words > 0 &&
        byte_automaton_check(s->automaton, s->num_automaton_words, &why) != STATUS_OK)
        reader_fail(r, "automaton", "%s", why.message);
}

static void read_sampling(struct reader *r, struct sampling_params *s, struct arena *arena)
{
    const float max = 1e30f; // finite
    reader_array(r, "sampling", SAMPLING_LEN, SAMPLING_LEN, 1);
    s->temperature = reader_float(r, "temperature", 0, max);
    s->top_p = reader_float(r, "top_p", 0, 1);
    s->min_p = reader_float(r, "min_p", 0, 1);
    s->top_k = reader_i32(r, "top_k", 0, INT32_MAX);
    s->presence_penalty = reader_float(r, "presence_penalty", -max, max);
    s->frequency_penalty = reader_float(r, "frequency_penalty", -max, max);
    s->repetition_penalty = reader_float(r, "repetition_penalty", 0, max);
    s->seed = reader_u64(r, "seed");
    s->max_tokens = reader_i32(r, "max_tokens", 1, INT32_MAX);
    s->min_tokens = reader_i32(r, "min_tokens", 0, INT32_MAX);
    s->eos_token_id = reader_i32(r, "eos_token_id", -1, INT32_MAX);
    s->stop_token_ids =
        reader_token_ids(r, "stop_token_ids", MAX_STOP_TOKEN_IDS, arena, &s->num_stop_token_ids);
    read_logit_bias(r, s, arena);
    s->allowed_token_ids = reader_token_ids(r, "allowed_token_ids", MAX_ALLOWED_TOKEN_IDS, arena,
                                            &s->num_allowed_token_ids);
    read_bad_words(r, s, arena);
    read_automaton(r, s, arena);
    s->logprob_token_ids = reader_token_ids(r, "logprob_token_ids", MAX_LOGPROB_TOKEN_IDS, arena,
                                            &s->num_logprob_token_ids);
    s->num_logprobs = reader_i32(r, "num_logprobs", -1, MAX_VOCAB);
    s->num_prompt_logprobs = reader_i32(r, "num_prompt_logprobs", -1, MAX_VOCAB);
    if (reader_ok(r) && s->top_p == 0)
        reader_fail(r, "top_p", "0 is not within (0, 1]");
    if (reader_ok(r) && s->repetition_penalty == 0)
        reader_fail(r, "repetition_penalty", "0 is not above 0");
}

static void read_request(struct reader *r, struct engine_core_request *request, struct arena *arena)
{
    request->request_id = reader_u64(r, "request_id");
    request->external_id = reader_u64(r, "external_id");
    request->client_index = reader_i32(r, "client_index", 0, MAX_API_SERVERS - 1);
    request->priority = reader_int(r, "priority", INT64_MIN, INT64_MAX);
    request->arrival_time_ns = reader_int(r, "arrival_time_ns", 0, INT64_MAX);
    request->prompt_token_ids =
        reader_token_ids(r, "prompt_token_ids", MAX_TOKENS, arena, &request->num_prompt_tokens);
    request->output_token_ids =
        reader_token_ids(r, "output_token_ids", MAX_TOKENS, arena, &request->num_output_tokens);
    struct str salt = reader_bin(r, "cache_salt", MAX_CACHE_SALT_BYTES);
    if (salt.len > 0)
        request->cache_salt = arena_str(arena, salt);
    reader_array(r, "pooling", POOLING_LEN, POOLING_LEN, 1);
    request->pooling.type =
        (enum pooling_type)reader_i32(r, "pooling type", POOLING_NONE, NUM_POOLING_TYPES - 1);
    request->pooling.use_activation = reader_bool(r, "use_activation");
    request->pooling.dimensions = reader_i32(r, "dimensions", 0, MAX_DIMENSIONS);
    read_sampling(r, &request->sampling, arena);
    if (reader_ok(r) && request->num_prompt_tokens == 0)
        reader_fail(r, "prompt_token_ids", "a request without a prompt");
}

static const struct token_logprobs *read_logprobs(struct reader *r, const char *field, int32_t min,
                                                  int32_t max, struct arena *arena, int32_t *num)
{
    *num = reader_array(r, field, min, max, MIN_LOGPROBS_BYTES);
    if (*num == 0)
        return NULL;
    struct token_logprobs *rows = arena_calloc(arena, (size_t)*num, sizeof(*rows));
    for (int32_t i = 0; i < *num && reader_ok(r); i++) {
        int32_t num_values;
        reader_array(r, field, LOGPROBS_LEN, LOGPROBS_LEN, 1);
        rows[i].token_ids = reader_token_ids(r, field, MAX_VOCAB + 1, arena, &rows[i].num_entries);
        // A token that a mask forbids has probability zero, whose logarithm is minus infinity.
        rows[i].logprobs =
            reader_floats(r, field, MAX_VOCAB + 1, -INFINITY, 1e30f, arena, &num_values);
        rows[i].rank = reader_i32(r, field, 0, INT32_MAX);
        if (rows[i].num_entries != num_values)
            reader_fail(r, field, "%d token ids and %d logprobs", rows[i].num_entries, num_values);
    }
    return rows;
}

static void read_output(struct reader *r, struct engine_core_output *output, struct arena *arena)
{
    reader_array(r, "output", OUTPUT_LEN, OUTPUT_LEN, 1);
    output->request_id = reader_u64(r, "request_id");
    output->new_token_ids =
        reader_token_ids(r, "new_token_ids", MAX_TOKENS, arena, &output->num_new_tokens);
    int32_t num_rows;
    if (!reader_take_nil(r))
        output->logprobs = read_logprobs(r, "logprobs", output->num_new_tokens,
                                         output->num_new_tokens, arena, &num_rows);
    output->first_prompt_logprob = reader_i32(r, "first_prompt_logprob", 0, MAX_TOKENS);
    output->prompt_logprobs =
        read_logprobs(r, "prompt_logprobs", 0, MAX_TOKENS, arena, &output->num_prompt_logprobs);
    output->pooled =
        reader_floats(r, "vector", MAX_DIMENSIONS, -FLT_MAX, FLT_MAX, arena, &output->num_pooled);
    output->finish_reason =
        (enum finish_reason)reader_i32(r, "finish_reason", FINISH_REASON_NONE, FINISH_REASON_ERROR);
    output->refusal.kind =
        (enum refusal_kind)reader_i32(r, "refusal", REFUSAL_NONE, NUM_REFUSAL_KINDS - 1);
    output->refusal.num_tokens = reader_i32(r, "refused tokens", 0, INT32_MAX);
    output->refusal.limit = reader_i32(r, "refusal limit", INT32_MIN, INT32_MAX);
    output->stop_token_id = reader_i32(r, "stop_token_id", -1, INT32_MAX);
    output->num_cached_tokens = reader_i32(r, "num_cached_tokens", 0, INT32_MAX);
    output->num_preemptions = reader_i32(r, "num_preemptions", 0, INT32_MAX);
    output->queued_ns = reader_int(r, "queued_ns", 0, INT64_MAX);
    output->scheduled_ns = reader_int(r, "scheduled_ns", 0, INT64_MAX);
    output->first_token_ns = reader_int(r, "first_token_ns", 0, INT64_MAX);
    output->last_token_ns = reader_int(r, "last_token_ns", 0, INT64_MAX);
}

static void read_outputs(struct reader *r, struct engine_core_outputs *outputs, struct arena *arena)
{
    outputs->engine_index = reader_i32(r, "engine_index", 0, INT32_MAX);
    outputs->timestamp_ns = reader_int(r, "timestamp_ns", 0, INT64_MAX);
    outputs->num_outputs = reader_array(r, "outputs", 0, MAX_OUTPUTS, MIN_OUTPUT_BYTES);
    if (outputs->num_outputs == 0)
        return;
    struct engine_core_output *list =
        arena_calloc(arena, (size_t)outputs->num_outputs, sizeof(*list));
    for (int32_t i = 0; i < outputs->num_outputs && reader_ok(r); i++)
        read_output(r, &list[i], arena);
    outputs->outputs = list;
}

/** How many elements the array of a kind has; 0: no such kind. */
static int32_t message_len(int64_t kind)
{
    switch (kind) {
    case MESSAGE_HELLO:
    case MESSAGE_REPLY:
    case MESSAGE_FIND_REQUEST:
    case MESSAGE_HISTORIES:
        return 3;
    case MESSAGE_ABORT:
    case MESSAGE_RESET_PREFIX_CACHE:
    case MESSAGE_DUMP_RECORDING:
        return 2;
    case MESSAGE_WELCOME:
    case MESSAGE_DUMPED:
        return 4;
    case MESSAGE_ADD:
        return ADD_LEN;
    case MESSAGE_OUTPUTS:
        return OUTPUTS_LEN;
    default:
        return 0;
    }
}

enum status message_decode(struct message *m, struct str frame, struct arena *arena,
                           struct error *err)
{
    *m = (struct message){0};
    struct reader reader, *r = &reader;
    reader_init(r, frame, err);
    int32_t len = reader_array(r, "message", 2, ADD_LEN, 1);
    m->kind = (enum message_kind)reader_i32(r, "kind", MESSAGE_HELLO, MESSAGE_HISTORIES);
    if (reader_ok(r) && message_len(m->kind) == 0)
        reader_fail(r, "kind", "%d is no kind of message", (int)m->kind);
    if (reader_ok(r) && message_len(m->kind) != len)
        reader_fail(r, "message", "kind %d has %d elements, found %d", (int)m->kind,
                    message_len(m->kind), len);
    if (!reader_ok(r))
        return r->status;

    switch (m->kind) {
    case MESSAGE_HELLO: // any version: the reader of the message says which one it wants
        m->hello.version = reader_i32(r, "version", 0, INT32_MAX);
        m->hello.client_index = reader_i32(r, "client_index", 0, MAX_API_SERVERS - 1);
        break;
    case MESSAGE_ADD:
        read_request(r, &m->add, arena);
        break;
    case MESSAGE_ABORT:
        m->abort.ids = reader_u64s(r, "ids", MAX_IDS, arena, &m->abort.num_ids);
        break;
    case MESSAGE_RESET_PREFIX_CACHE:
        m->reset_prefix_cache.call_id = reader_int(r, "call_id", INT64_MIN, INT64_MAX);
        break;
    case MESSAGE_DUMP_RECORDING:
        m->dump_recording.call_id = reader_int(r, "call_id", INT64_MIN, INT64_MAX);
        break;
    case MESSAGE_FIND_REQUEST:
        m->find_request.call_id = reader_int(r, "call_id", INT64_MIN, INT64_MAX);
        m->find_request.external_id = reader_u64(r, "external_id");
        break;
    case MESSAGE_DUMPED: {
        m->dumped.call_id = reader_int(r, "call_id", INT64_MIN, INT64_MAX);
        m->dumped.ok = reader_bool(r, "ok");
        m->dumped.text = arena_str(arena, reader_bin(r, "text", MAX_DUMP_TEXT_BYTES));
        break;
    }
    case MESSAGE_HISTORIES:
        read_histories(r, m, arena);
        break;
    case MESSAGE_WELCOME:
        m->welcome.version = reader_i32(r, "version", 0, INT32_MAX);
        m->welcome.generation = reader_i32(r, "generation", 0, INT32_MAX);
        m->welcome.num_losses = reader_i32(r, "num_losses", 0, INT32_MAX);
        break;
    case MESSAGE_OUTPUTS:
        read_outputs(r, &m->outputs, arena);
        break;
    case MESSAGE_REPLY:
        m->reply.call_id = reader_int(r, "call_id", INT64_MIN, INT64_MAX);
        m->reply.ok = reader_bool(r, "ok");
        break;
    }
    return reader_finish(r);
}
