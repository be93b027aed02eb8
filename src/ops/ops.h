// The one table of operations on tensors. A backend fills it; layers call its front door, op_*().
//
// Destination first, as in memcpy. Activations have the device's dtype (float32 on the CPU,
// bfloat16 or float16 on CUDA), sums are taken in float32 or wider; a weight keeps the form it is
// multiplied in. All pointers are device memory unless said otherwise; operations run in the order
// of their calls, and may still be running when a call returns. On the CPU, and on a GPU that was
// told so, every operation is batch-invariant: a row's result, to the bit, depends on that row (for
// attention: on its own sequence) and never on what else is in the batch.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "ops/tensor.h"

/** The form a linear layer's weight is multiplied in. Later forms: int8, int4 groups, GGUF blocks;
 *  each may be packed by the backend when it is prepared. */
enum weight_form { WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16, WEIGHT_F8_E4M3 };

enum { WEIGHT_BLOCK = 128 };

/** What the elements of WEIGHT_F8_E4M3 are multiplied with, and what a device that multiplies e4m3
 *  with e4m3 makes of the activations. Others keep those and widen the elements. */
struct weight_scales {
    const float *values; // [out_features], or with a pitch [ceil(out_features / 128), block_pitch]:
                         // one for each 128 x 128 elements
    int32_t block_pitch; // 0: a scale for each row
    bool quantizes_input; // by token, or with blocks by each 128 of a token
    float input_scale;    // then: of all tokens; 0: each by its largest magnitude
};

/** A weight matrix [out_features, in_features] and its optional bias. */
struct weight {
    enum weight_form form;
    int64_t out_features, in_features;
    const void *data; // rows of in_features elements, or what prepare_weight() made of them
    const void *bias; // [out_features] f32 or NULL, or what prepare_weight() made of it
    bool is_packed;   // data (and bias) are the backend's own allocation, one for both
    struct weight_scales scales; // WEIGHT_F8_E4M3; prepared, they stay until the device closes
};

/** What element [row, col] of a weight is multiplied with. */
static inline float weight_scale(const struct weight_scales *scales, int64_t row, int64_t col)
{
    if (scales->block_pitch == 0)
        return scales->values[row];
    return scales->values[row / WEIGHT_BLOCK * scales->block_pitch + col / WEIGHT_BLOCK];
}

/** A matrix [out_features, in_features] for each expert of a layer. */
struct expert_weights {
    enum weight_form form;
    int32_t num_experts;
    int64_t out_features, in_features;
    const void *const *data; // [num_experts], device memory: where each expert's rows begin
    const void *stacked;     // the first one's, if all lie behind one another; else NULL
};

/** How experts' products are taken. */
struct expert_product {
    bool is_by_token; // x has a row for each token, not for each slot
    bool is_swiglu;   // an expert holds the gate's rows, then up's: out = silu(gate) * up
};

enum { MAX_EXPERTS = 1024 };

/**
 * Which experts a step's tokens go to. Each token makes top_k choices; all choices, sorted by
 * expert, are the slots. All arrays are device memory, filled by route_experts().
 */
struct expert_routes {
    int32_t num_tokens, top_k, num_experts; // num_experts <= MAX_EXPERTS
    float *weights;                         // [num_tokens, top_k]
    int32_t *slots;                         // [num_tokens, top_k]: the slot of each choice
    int32_t *tokens;                        // [num_tokens * top_k]: the token of each slot
    int32_t *expert_start;                  // [num_experts + 1]: the slots of each expert
    int32_t *tiles;                         // [expert_tile_words()]: the backend's own
};

/** Words of expert_routes.tiles. */
static inline int64_t expert_tile_words(int64_t num_slots, int32_t num_experts)
{
    int64_t num_partial = num_slots < num_experts ? num_slots : num_experts;
    return 1 + 2 * (num_slots / 16 + num_partial);
}

/** Where the sequences of a step lie. All arrays are device memory. */
struct attention_batch {
    int32_t num_seqs, num_tokens;
    const int32_t *query_start; // [num_seqs + 1]: rows of sequence s in the step
    const int32_t *seq_lens;    // [num_seqs]: tokens in the cache after this step's are written
    const int32_t
        *block_table;         // [num_seqs, max_blocks] of this layer's group; NO_BLOCK is not read
    int32_t max_blocks;       // width of the table
    const int32_t *token_seq; // [num_tokens]: the sequence of each row
    const int32_t *positions; // [num_tokens]
    int32_t max_query_len, max_seq_len;
    int32_t max_seqs; // that any step will have
};

/** One layer's part of the KV pool: keys then values, each [num_blocks, num_kv_heads, block_size,
 *  head_dim] of `dtype`. */
struct kv_cache {
    void *k, *v;
    enum dtype dtype; // F32, F16, BF16, F8_E4M3
    int32_t num_blocks, block_size, num_kv_heads, head_dim;
    float k_scale, v_scale; // F8_E4M3: what was stored times this is the value; else not read
};

struct attention_params {
    float scale;
    int32_t window; // 0: full; else a query at p sees keys k with p - k < window
    int32_t num_heads;
    float softcap; // 0: none; else scores s become softcap * tanh(s / softcap)
};

/** RMS normalisation of rows: x / sqrt(mean(x^2) + eps) * (weight_offset + weight). */
struct norm_params {
    const void *weight; // [n], of the device's dtype for activations
    float eps;
    float weight_offset; // 1 where checkpoints hold the distance from one
};

/** What happens to a step's queries, keys and values between their projection and attention. */
struct qkv_params {
    int32_t num_heads;           // of queries; those of keys and values are the cache's
    const void *q_norm, *k_norm; // [head_dim]: RMS norms of each head; NULL: none
    float eps, norm_weight_offset;
    const float *cos_sin; // [max_position, rot_dim]: cosines, then sines
    int32_t rot_dim;      // leading dimensions of a head that are rotated
};

/** How one token is drawn from a row of logits: as worker/sampler.h says of struct sampling_params,
 *  with its lists in device memory. */
struct sample_params {
    float temperature, top_p, min_p;
    float presence_penalty, frequency_penalty, repetition_penalty;
    uint64_t seed;
    int32_t top_k;
    int32_t min_tokens, num_forbidden;     // impossible until min_tokens
    int32_t num_logit_bias, num_allowed;   // num_allowed 0: all
    int32_t num_logprobs;                  // -1: none; at most MAX_DEVICE_LOGPROBS
    int32_t num_prompt_tokens, num_tokens; // of token_ids; their difference counts the draws
    const int32_t *forbidden, *allowed;
    const void *logit_bias;    // struct logit_bias of message.h, ids all different
    const int32_t *token_ids;  // prompt, then outputs; read when a penalty is set
    const int32_t *last_token; // the last of them, where it is not among token_ids; else NULL
    const uint32_t *mask; // a bit for each token that may come, before anything else; NULL: all
};

enum { MAX_DEVICE_LOGPROBS = 20 };

/** Log-probabilities of drawn tokens, row by row: of the token, then of the likeliest, equal ones
 *  by rising id; and how many tokens are at least as likely as the drawn one. */
struct sampled_logprobs {
    int32_t *token_ids; // [rows, 1 + MAX_DEVICE_LOGPROBS]
    float *logprobs;    // likewise
    int32_t *ranks;     // [rows]
};

/** What a backend keeps memory of its own for: a model's attention, over `num_windows` different
 *  windows, in steps of up to `max_seqs` sequences; and products of up to `max_tokens` rows with
 *  weights of e4m3 of at most these sizes (0: there are none). */
struct backend_needs {
    int32_t num_heads, num_kv_heads, head_dim, block_size;
    int32_t num_windows, max_seqs;
    int32_t max_tokens;
    int64_t f8_in_features, f8_out_features;
};

/** What a product does besides: see fused_matmul(). */
struct matmul_fusion {
    struct norm_params norm; // of x before the product; its weight NULL: none
    bool is_swiglu; // the weight holds the gate's rows, then up's: the result is silu(gate) * up
    bool adds;      // the result is added to what `out` holds
};

struct device;

/** What a backend can do. Entries are never NULL unless they say so. */
struct ops {
    const char *name; // "cpu/scalar", "cpu/avx2", "cuda/sm90"

    void (*close)(struct device *dev); // gives the backend's state back; NULL: it has none
    void *(*alloc)(struct device *dev, size_t size_bytes); // NULL when it does not fit
    void (*free)(struct device *dev, void *ptr);
    /** Between host and device memory; done when the call returns. */
    void (*copy_in)(struct device *dev, void *dst, const void *host_src, size_t size_bytes);
    void (*copy_out)(struct device *dev, void *host_dst, const void *src, size_t size_bytes);
    /** Host memory that upload() and download() can use. NULL when it does not fit. */
    void *(*alloc_staging)(struct device *dev, size_t size_bytes);
    void (*free_staging)(struct device *dev, void *ptr);
    /** Copies in order with the operations; staging memory must stay as it is until they are done.
     */
    void (*upload)(struct device *dev, void *dst, const void *staging, size_t size_bytes);
    void (*download)(struct device *dev, void *staging, const void *src, size_t size_bytes);
    /** Copies rows within device memory. NULL: device memory is the host's. */
    void (*copy_rows)(struct device *dev, void *dst, size_t dst_pitch_bytes, const void *src,
                      size_t src_pitch_bytes, size_t row_bytes, size_t num_rows);
    /** Marks (of MAX_MARKS) stand behind all work so far; wait_mark() waits for what stands before
     *  one, as synchronize() does for everything. */
    void (*set_mark)(struct device *dev, int32_t mark);
    enum status (*wait_mark)(struct device *dev, int32_t mark, struct error *err);
    /** Whether waiting for a mark that was set would take no time. */
    bool (*passed_mark)(struct device *dev, int32_t mark);
    /** Waits for all work; the device's own errors surface here. */
    enum status (*synchronize)(struct device *dev, struct error *err);
    /** Bytes of device memory in all and not in use. NULL: device memory is the host's. */
    void (*memory_info)(struct device *dev, int64_t *total_bytes, int64_t *free_bytes);
    /** Bytes of device memory that the operations take for themselves. NULL: none. */
    size_t (*own_bytes)(const struct device *dev, const struct backend_needs *needs);
    /** Takes the part of them whose size depends on the needs, where it is not taken at the first
     *  use, and finds out which kernels may be mixed in a batch-invariant mode. NULL: none.
     *  Errors: OUT_OF_MEMORY; what synchronize() tells. */
    enum status (*reserve)(struct device *dev, const struct backend_needs *needs,
                           struct error *err);

    /** Bytes that prepare_weight() will allocate on the device for this weight, besides its bias;
     *  0: used in place. */
    size_t (*prepared_weight_bytes)(const struct device *dev, const struct weight *w);
    /** Turns a weight in host memory into the form this backend multiplies fastest; in place of
     *  `w->data` and `w->bias`. Where there is a make_up(), `w->data` may be NULL: then it takes
     * the memory and leaves it as it is. Errors: OUT_OF_MEMORY. */
    enum status (*prepare_weight)(struct device *dev, struct weight *w, struct error *err);

    /**
     * Made-up elements of two bytes, `count` of them: of each eight that begin at element e, byte i
     * of mix(key + e) picks element e + i out of `levels` [256] in host memory; mix() is
     * splitmix64's. NULL: they are made on the host.
     */
    void (*make_up)(struct device *dev, void *dst, const void *levels, uint64_t key, size_t count);

    /** out[i] = table[ids[i]] * scale; out: [num_tokens, hidden], table: [vocab, hidden]
     *  f32/f16/bf16. */
    void (*embedding)(struct device *dev, struct tensor out, struct tensor table,
                      const int32_t *ids, float scale);
    /** out = rms_norm(x); x, out: [rows, n] with any row stride (may be the same). */
    void (*rms_norm)(struct device *dev, struct tensor out, struct tensor x,
                     struct norm_params norm);
    /** residual += x, then x = rms_norm(residual). Both [rows, n]. */
    void (*add_rms_norm)(struct device *dev, struct tensor x, struct tensor residual,
                         struct norm_params norm);
    /** residual += rms_norm(x, post), then x = rms_norm(residual, pre); without a weight in `pre`,
     *  x is undefined on return. Both [rows, n]. */
    void (*add_post_norm)(struct device *dev, struct tensor x, struct tensor residual,
                          struct norm_params post, struct norm_params pre);
    /** out = x * w^T + bias; x: [rows, in], out: [rows, out] with any row stride, of the device's
     *  dtype or f32 (logits). */
    void (*matmul)(struct device *dev, struct tensor out, struct tensor x, const struct weight *w);
    /** Whether fused_matmul() takes `rows` rows of this weight, and is the faster way. */
    bool (*fuses_matmul)(const struct device *dev, int64_t rows, const struct weight *w,
                         const struct matmul_fusion *fusion);
    /** out = (out +) the product of x and w with what `fusion` says; x: [rows, in], out: [rows,
     * out] or, of a SwiGLU, [rows, out / 2]; both of the device's dtype, and apart. */
    void (*fused_matmul)(struct device *dev, struct tensor out, struct tensor x,
                         const struct weight *w, const struct matmul_fusion *fusion);
    /**
     * qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], a row's queries, keys, values.
     * Normalises the heads of queries and keys, rotates their first rot_dim dimensions (half-split
     * pairs), and writes keys and values to the token's slot (block * block_size + offset;
     * negative: none). On return the queries are ready; keys and values are undefined.
     */
    void (*prepare_qkv)(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                        const struct qkv_params *params, const int32_t *positions,
                        const int64_t *slot_mapping);
    /** out: [num_tokens, num_heads * head_dim]; q: the same with any row stride. The step's own
     *  keys and values are in the cache already. */
    void (*attention)(struct device *dev, struct tensor out, struct tensor q,
                      const struct kv_cache *cache, const struct attention_batch *batch,
                      const struct attention_params *params);
    /** out = silu(gate) * up; gate_up: [rows, 2n] (gate first), out: [rows, n]. */
    void (*silu_and_mul)(struct device *dev, struct tensor out, struct tensor gate_up);
    /** The same with gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
    void (*gelu_and_mul)(struct device *dev, struct tensor out, struct tensor gate_up);
    /** x = cap * tanh(x / cap); x: [rows, n] f32 (logits). */
    void (*soft_cap)(struct device *dev, struct tensor x, float cap);
    /**
     * Fills `routes` from logits [num_tokens, num_experts] f32: a token's choices are its top_k
     * largest logits (equal ones by rising id, NaN last), their weights the softmax over all
     * logits, with `renormalises` divided by their sum.
     */
    void (*route_experts)(struct device *dev, const struct expert_routes *routes,
                          struct tensor logits, bool renormalises);
    /** Whether fused_router() takes so many tokens of this router. */
    bool (*fuses_router)(const struct device *dev, int64_t num_tokens, const struct weight *router);
    /** out = rms_norm(x), and route_experts() from its product with `router`; x, out:
     *  [num_tokens, n], apart. */
    void (*fused_router)(struct device *dev, const struct expert_routes *routes, struct tensor out,
                         struct tensor x, struct norm_params norm, const struct weight *router,
                         bool renormalises);
    /** out[slot] = x * w[expert of the slot]^T; out: [slots, out] or, of a SwiGLU, [slots, out /
     *  2]; x: [slots, in], or [num_tokens, in], whose row of the slot's token is taken. A product
     *  of slots comes after one of tokens over the same routes. */
    void (*matmul_experts)(struct device *dev, struct tensor out, struct tensor x,
                           const struct expert_weights *w, const struct expert_routes *routes,
                           struct expert_product product);
    /** out[token] = the sum over its choices, in order, of weight * x[slot], added with `adds` to
     *  what it holds; x: [slots, n]. */
    void (*combine_experts)(struct device *dev, struct tensor out, struct tensor x,
                            const struct expert_routes *routes, bool adds);
    /** out[i] = x[rows[i]]; both 2-d. */
    void (*gather_rows)(struct device *dev, struct tensor out, struct tensor x,
                        const int32_t *rows);
    /** token_ids[i] = drawn[indices[i]], or 0 where that is negative; left alone where the index
     * is. NULL: device memory is the host's. */
    void (*take_tokens)(struct device *dev, int32_t *token_ids, const int32_t *indices,
                        const int32_t *drawn, int32_t num_tokens);
    /** token_ids[i] is drawn from row i of logits [rows, vocab] f32 as `params[i]` says; -1 where
     *  a logit is NaN or +infinity or none is finite, -2 where `params` leaves none. NULL: the
     *  worker draws, from logits in host memory. */
    void (*sample)(struct device *dev, int32_t *token_ids, struct tensor logits,
                   const struct sample_params *params);
    /** Log-probabilities of those tokens under the logits that `mask` leaves, for rows with
     *  num_logprobs >= 0 and a token; other rows are left alone. NULL where sample() is. */
    void (*sample_logprobs)(struct device *dev, const struct sampled_logprobs *out,
                            const int32_t *token_ids, struct tensor logits,
                            const struct sample_params *params);

    /** Between begin and end, operations and copies are recorded instead of run; replay() runs them
     *  again over the same memory. All NULL: the device has no such thing. */
    void (*record_begin)(struct device *dev);
    void *(*record_end)(struct device *dev); // NULL: it failed; synchronize() tells
    void (*replay)(struct device *dev, void *recording);
    void (*free_recording)(struct device *dev, void *recording);
};

enum { MAX_MARKS = 2 };

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

/** A device and its backend. Belongs to the worker's thread. */
struct device {
    struct ops ops;
    enum device_kind kind;
    enum dtype activation_dtype; // a GPU's may be set to float16 before its first operation
    bool has_host_memory;        // its memory is the host's: nothing needs to be copied
    /** A row's result never depends, to the bit, on what else is in the batch. A GPU may be told so
     *  before its first operation, and is slower then. */
    bool is_batch_invariant;
    struct arena scratch; // host scratch of one operation; reset by the model runner each step
    int32_t num_threads;
    int32_t max_sampled_vocab; // the widest rows that sample() takes
    int64_t recording_bytes;   // to set aside for each recording
    void *backend;             // the backend's own state
};

/** Instruction sets of the CPU backend, weakest first. */
enum cpu_isa { CPU_ISA_SCALAR, CPU_ISA_AVX2, CPU_ISA_AUTO };

/** A CPU device. `isa` AUTO takes the best this machine has. Errors: UNSUPPORTED (the machine lacks
 *  `isa`). `num_threads` 0: as OpenMP says. */
NODISCARD enum status cpu_device_init(struct device *dev, enum cpu_isa isa, int32_t num_threads,
                                      struct error *err);

/** The machine's first GPU; `num_threads` for what the host computes beside it. Errors: UNSUPPORTED
 *  (no GPU, driver or library that will do, or a build without CUDA), saying which. */
NODISCARD enum status cuda_device_init(struct device *dev, int32_t num_threads, struct error *err);

/** A GPU to plan for: it has the sizes of one (what weights and operations take) and no memory, no
 *  operations and no driver; to be deinitialised all the same. */
void cuda_device_init_planned(struct device *dev, int32_t num_threads);

/** Whether cuda_device_init() would find what it needs; starts no context. */
bool cuda_is_available(void);

void device_deinit(struct device *dev);

/** "scalar", "avx2", "auto". NOT_FOUND otherwise. */
NODISCARD enum status cpu_isa_parse(struct str text, enum cpu_isa *out);

// The front door: checks shapes once for every backend, then calls the table.
void op_embedding(struct device *dev, struct tensor out, struct tensor table, const int32_t *ids,
                  float scale);
void op_rms_norm(struct device *dev, struct tensor out, struct tensor x, struct norm_params norm);
void op_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                     struct norm_params norm);
void op_add_post_norm(struct device *dev, struct tensor x, struct tensor residual,
                      struct norm_params post, struct norm_params pre);
void op_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w);
bool op_fuses_matmul(const struct device *dev, int64_t rows, const struct weight *w,
                     const struct matmul_fusion *fusion);
void op_fused_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w,
                     const struct matmul_fusion *fusion);
void op_prepare_qkv(struct device *dev, struct tensor qkv, const struct kv_cache *cache,
                    const struct qkv_params *params, const int32_t *positions,
                    const int64_t *slot_mapping);
void op_attention(struct device *dev, struct tensor out, struct tensor q,
                  const struct kv_cache *cache, const struct attention_batch *batch,
                  const struct attention_params *params);
void op_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up);
void op_gelu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up);
void op_soft_cap(struct device *dev, struct tensor x, float cap);
void op_route_experts(struct device *dev, const struct expert_routes *routes, struct tensor logits,
                      bool renormalises);
bool op_fuses_router(const struct device *dev, int64_t num_tokens, const struct weight *router);
void op_fused_router(struct device *dev, const struct expert_routes *routes, struct tensor out,
                     struct tensor x, struct norm_params norm, const struct weight *router,
                     bool renormalises);
void op_matmul_experts(struct device *dev, struct tensor out, struct tensor x,
                       const struct expert_weights *w, const struct expert_routes *routes,
                       struct expert_product product);
void op_combine_experts(struct device *dev, struct tensor out, struct tensor x,
                        const struct expert_routes *routes, bool adds);
void op_gather_rows(struct device *dev, struct tensor out, struct tensor x, const int32_t *rows);
void op_sample(struct device *dev, int32_t *token_ids, struct tensor logits,
               const struct sample_params *params);
void op_sample_logprobs(struct device *dev, const struct sampled_logprobs *out,
                        const int32_t *token_ids, struct tensor logits,
                        const struct sample_params *params);
void op_take_tokens(struct device *dev, int32_t *token_ids, const int32_t *indices,
                    const int32_t *drawn, int32_t num_tokens);
