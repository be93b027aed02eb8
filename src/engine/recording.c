// The numbers of a recording, and the configuration record.
#include "engine/recording.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"

struct block_hash content_id(const struct content_key *key, struct block_hash hash)
{
    if (!key)
        return hash;
    XXH128_hash_t wide =
        XXH3_128bits_withSecret(&hash, sizeof(hash), key->secret, sizeof(key->secret));
    return (struct block_hash){wide.low64, wide.high64};
}

// ---- writing -------------------------------------------------------------------------------

void write_uint(struct record_writer *w, uint64_t value)
{
    enum { LONGEST = 10 };
    if (w->end - w->at < LONGEST) {
        w->overflow = true;
        return;
    }
    for (; value >= 0x80; value >>= 7)
        *w->at++ = (uint8_t)(value | 0x80);
    *w->at++ = (uint8_t)value;
}

void write_int(struct record_writer *w, int64_t value)
{
    write_uint(w, (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0));
}

void write_content(struct record_writer *w, const struct content_key *key, struct block_hash hash)
{
    struct block_hash id = content_id(key, hash);
    if ((size_t)(w->end - w->at) < sizeof(id)) {
        w->overflow = true;
        return;
    }
    memcpy(w->at, &id, sizeof(id));
    w->at += sizeof(id);
}

// ---- reading -------------------------------------------------------------------------------

void record_fail(struct record_reader *r, const char *format, ...)
{
    if (!record_ok(r))
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    r->status = error_set(r->err, STATUS_INVALID, "%s", text);
}

uint64_t read_uint(struct record_reader *r, const char *field)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && record_ok(r); shift += 7) {
        if (r->at == r->end) {
            record_fail(r, "%s: the record ends within it", field);
            return 0;
        }
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return value;
    }
    record_fail(r, "%s: a number of more than 64 bits", field);
    return 0;
}

int64_t read_int(struct record_reader *r, const char *field, int64_t min, int64_t max)
{
    uint64_t bits = read_uint(r, field);
    int64_t value = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
    if (record_ok(r) && (value < min || value > max)) {
        record_fail(r, "%s is %lld, expected %lld to %lld", field, (long long)value, (long long)min,
                    (long long)max);
    }
    return record_ok(r) ? value : 0;
}

int32_t read_i32(struct record_reader *r, const char *field, int32_t min, int32_t max)
{
    return (int32_t)read_int(r, field, min, max);
}

struct block_hash read_content(struct record_reader *r)
{
    struct block_hash id = {0};
    if (!record_ok(r))
        return id;
    if ((size_t)(r->end - r->at) < sizeof(id)) {
        record_fail(r, "the record ends within a content id");
        return id;
    }
    memcpy(&id, r->at, sizeof(id));
    r->at += sizeof(id);
    return id;
}

int32_t read_count(struct record_reader *r, const char *field, int32_t max, size_t min_bytes)
{
    int32_t count = read_i32(r, field, 0, max);
    if (record_ok(r) && (size_t)count > (size_t)(r->end - r->at) / min_bytes)
        record_fail(r, "%s is %d, and the record has %zu bytes left", field, (int)count,
                    (size_t)(r->end - r->at));
    return record_ok(r) ? count : 0;
}

enum status record_finish(struct record_reader *r)
{
    if (record_ok(r) && r->at != r->end)
        record_fail(r, "%zu bytes are left in the record", (size_t)(r->end - r->at));
    return r->status;
}

// ---- configuration -------------------------------------------------------------------------

enum {
    MAX_RECORDED_SEQS = 1 << 16,
    MAX_RECORDED_LEN = 1 << 24,
    MAX_RECORDED_BLOCKS = 1 << 24,
    MAX_RECORDED_BLOCK_SIZE = 1 << 16,
    WATERMARK_UNITS = 1 << 30, // the watermark is written in such parts of the whole
};

void read_prompt_use(struct record_reader *r, struct engine_core_request *request)
{
    int32_t use = read_i32(r, "use of the prompt", 0, 2 * NUM_POOLING_TYPES - 1);
    request->sampling.num_prompt_logprobs = use % 2 - 1;
    request->pooling.type = (enum pooling_type)(use / 2);
}

void config_write(struct record_writer *w, const struct scheduler_config *c)
{
    write_int(w, c->max_num_batched_tokens);
    write_int(w, c->max_num_seqs);
    write_int(w, c->max_model_len);
    write_int(w, c->enable_chunked_prefill);
    write_int(w, c->enable_prefix_caching);
    write_int(w, c->async_scheduling);
    write_int(w, c->long_prefill_token_threshold);
    write_int(w, c->max_num_partial_prefills);
    write_int(w, c->max_long_partial_prefills);
    write_int(w, c->policy);
    write_int(w, c->reserve_full_isl);
    // Rounded up: the scheduler rounds the number of blocks down.
    write_int(w, (int64_t)(c->watermark * WATERMARK_UNITS) + (c->watermark > 0));
    const struct kv_cache_config *kv = c->kv_cache;
    write_int(w, kv->block_size);
    write_int(w, kv->num_blocks);
    write_int(w, kv->num_groups);
    for (int32_t g = 0; g < kv->num_groups; g++) {
        write_int(w, kv->groups[g].kind);
        write_int(w, kv->groups[g].window);
    }
}

enum status config_read(struct record_reader *r, struct scheduler_config *c,
                        struct kv_cache_config *kv)
{
    *kv = (struct kv_cache_config){0};
    *c = (struct scheduler_config){
        .vocab_size = REPLAY_VOCAB_SIZE, .hash_algo = BLOCK_HASH_GIVEN, .kv_cache = kv};
    c->max_num_batched_tokens = read_i32(r, "max_num_batched_tokens", 1, INT32_MAX);
    c->max_num_seqs = read_i32(r, "max_num_seqs", 1, MAX_RECORDED_SEQS);
    c->max_model_len = read_i32(r, "max_model_len", 1, MAX_RECORDED_LEN);
    c->enable_chunked_prefill = read_i32(r, "enable_chunked_prefill", 0, 1) != 0;
    c->enable_prefix_caching = read_i32(r, "enable_prefix_caching", 0, 1) != 0;
    c->async_scheduling = read_i32(r, "async_scheduling", 0, 1) != 0;
    c->long_prefill_token_threshold =
        read_i32(r, "long_prefill_token_threshold", INT32_MIN, INT32_MAX);
    c->max_num_partial_prefills = read_i32(r, "max_num_partial_prefills", INT32_MIN, INT32_MAX);
    c->max_long_partial_prefills = read_i32(r, "max_long_partial_prefills", INT32_MIN, INT32_MAX);
    c->policy = (enum scheduling_policy)read_i32(r, "policy", SCHEDULING_POLICY_FCFS,
                                                 SCHEDULING_POLICY_PRIORITY);
    c->reserve_full_isl = read_i32(r, "reserve_full_isl", 0, 1) != 0;
    c->watermark = (double)read_int(r, "watermark", 0, WATERMARK_UNITS) / WATERMARK_UNITS;
    kv->block_size = read_i32(r, "block_size", 1, MAX_RECORDED_BLOCK_SIZE);
    kv->num_blocks = read_i32(r, "num_blocks", 0, MAX_RECORDED_BLOCKS);
    kv->num_groups = read_i32(r, "num_groups", 1, MAX_KV_CACHE_GROUPS);
    for (int32_t g = 0; g < kv->num_groups; g++) {
        kv->groups[g].kind = (enum kv_cache_group_kind)read_i32(
            r, "group kind", KV_CACHE_GROUP_FULL, KV_CACHE_GROUP_LATENT);
        bool is_sliding = kv->groups[g].kind == KV_CACHE_GROUP_SLIDING;
        kv->groups[g].window = read_i32(r, "window", is_sliding, INT32_MAX / 2);
    }
    return record_finish(r);
}
