// What the files of the CPU backend share: how each fills the table, how many threads an operation
// is worth, and reading single elements of any form.
#pragma once

#include "base/memory.h"
#include "ops/ops.h"

/** Fills every entry with portable C: the reference that tests compare against. */
void cpu_ops_scalar(struct ops *ops);

/** Replaces what AVX2, FMA and F16C do better. The machine must have them. */
void cpu_ops_avx2(struct ops *ops);

// Mixtures of experts (experts.c): around the instruction set's own matmul().
void cpu_route_experts(struct device *dev, const struct expert_routes *routes, struct tensor logits,
                       bool renormalises);
bool cpu_fuses_router(const struct device *dev, int64_t num_tokens, const struct weight *router);
void cpu_fused_router(struct device *dev, const struct expert_routes *routes, struct tensor out,
                      struct tensor x, struct norm_params norm, const struct weight *router,
                      bool renormalises);
void cpu_matmul_experts(struct device *dev, struct tensor out, struct tensor x,
                        const struct expert_weights *w, const struct expert_routes *routes,
                        struct expert_product product);
void cpu_combine_experts(struct device *dev, struct tensor out, struct tensor x,
                         const struct expert_routes *routes, bool adds);

/** The parts of prepare_qkv() that instruction sets do in their own ways. */
struct cpu_qkv_parts {
    void (*head_rms_norm)(struct device *dev, struct tensor x, int32_t head_dim,
                          struct norm_params norm);
    /** `n` floats into a cache of `dtype`; `scale` counts for e4m3 alone. */
    void (*write_elements)(void *dst, enum dtype dtype, float scale, const float *src, int32_t n);
};

/** prepare_qkv() out of its parts. */
void cpu_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                     const struct qkv_params *params, const int32_t *positions,
                     const int64_t *slot_mapping, const struct cpu_qkv_parts *parts);

/** Threads for `work` multiply-adds (or as cheap steps): a hand-over costs a few microseconds, so
 *  that little work is done by the caller alone. All or one: OpenMP ends the threads that a smaller
 *  team leaves over, and would have to make them again. Results never depend on it. */
static inline int cpu_threads_for(const struct device *dev, int64_t work)
{
    const int64_t work_per_thread = 32 * 1024;
    return work >= work_per_thread * min_i64(dev->num_threads, 4) ? dev->num_threads : 1;
}

/** Gives scratch back. An arena that was empty keeps its largest chunk, so that a loop settles. */
static inline void cpu_scratch_end(struct arena *scratch, struct arena_mark mark)
{
    if (mark.used == 0)
        arena_reset(scratch);
    else
        arena_release(scratch, mark);
}

/** Element i of an array of `form` at any address: mapped files align nothing. Of e4m3 as it is
 *  stored, without its scale. */
static inline float cpu_load(enum weight_form form, const void *data, int64_t i)
{
    if (form == WEIGHT_F8_E4M3)
        return f8_e4m3_to_f32(((const uint8_t *)data)[i]);
    if (form == WEIGHT_F32) {
        float value;
        memcpy(&value, (const char *)data + i * 4, sizeof(value));
        return value;
    }
    uint16_t bits;
    memcpy(&bits, (const char *)data + i * 2, sizeof(bits));
    return form == WEIGHT_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static inline int64_t weight_form_bytes(enum weight_form form)
{
    return form == WEIGHT_F32 ? 4 : form == WEIGHT_F8_E4M3 ? 1 : 2;
}

/** F32, F16 and BF16 are also forms. */
static inline enum weight_form weight_form_of(enum dtype dtype)
{
    assert(dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16);
    return dtype == DTYPE_F32 ? WEIGHT_F32 : dtype == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16;
}

/** Element i of a cache's keys or values; `scale` is theirs. */
static inline float cpu_load_cached(enum dtype dtype, float scale, const void *data, int64_t i)
{
    if (dtype == DTYPE_F8_E4M3)
        return f8_e4m3_to_f32(((const uint8_t *)data)[i]) * scale;
    return cpu_load(weight_form_of(dtype), data, i);
}

/** Stores a head of keys or values in an e4m3 cache. */
static inline void cpu_write_f8(uint8_t *out, const float *src, float scale, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = f32_to_f8_e4m3(src[i] / scale);
}

/** The block of a sequence that holds a key; checked, since a wrong one is another user's text. */
static inline int32_t cpu_block_of(const struct kv_cache *cache,
                                   const struct attention_batch *batch, int32_t seq, int32_t key)
{
    int32_t column = key / cache->block_size;
    CHECK(column < batch->max_blocks);
    int32_t block = batch->block_table[(int64_t)seq * batch->max_blocks + column];
    CHECK(block >= 0 && block < cache->num_blocks);
    return block;
}

/** First key that a query at `position` sees. */
static inline int32_t cpu_first_key(const struct attention_params *params, int32_t position)
{
    return params->window > 0 ? max_i32(0, position - params->window + 1) : 0;
}
