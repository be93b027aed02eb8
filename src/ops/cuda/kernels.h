// Launchers of the Hopper kernels. Activations and weights are bf16, or f16 where the launch says
// so; sums are f32; what differs says so. What f16 cannot hold becomes its largest number. Every
// pointer is device memory. A launcher only enqueues on its stream: it allocates nothing,
// waits for nothing, and may be captured in a graph. Errors of a launch surface with the stream's
// next synchronisation (cudaGetLastError).
//
// Batch invariance, to the bit: everything here depends on a row's own data alone, whatever else is
// in the batch, but for one kernel: decode attention splits a sequence by what the batch leaves
// free.
//
// Each kernel waits for its predecessor on the stream with griddepcontrol, so that launches overlap
// their prologues (programmatic dependent launch) also inside graphs.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; // cudaStream_t is a pointer to it

/** What the launchers need to know about the device. */
struct cuda_launch {
    struct CUstream_st *stream;
    int32_t num_sms;
    bool is_f16; // activations, weights and an unquantised cache are float16, not bfloat16
};

// ---- Attention -----------------------------------------------------------------------------

/** One layer's KV pool as the kernels see it. k, v: [num_blocks, num_kv_heads, block_size,
 * head_dim] of the activations' type, or e4m3 with one scale each (value = stored * scale). */
struct cuda_kv_cache {
    void *k, *v;
    bool is_fp8;
    float k_scale, v_scale;                                 // fp8 only
    int32_t num_blocks, num_kv_heads, block_size, head_dim; // block_size: a multiple of 16
};

/** Head sizes that the attention kernels are stamped out for: 32, 64, 96, 128, 256. */
bool cuda_attention_supports(int32_t head_dim, int32_t block_size);

/** How a decode batch is cut into work; shared by all layers of a step with the same window. */
struct attention_decode_plan {
    int32_t *memory; // attention_decode_plan_bytes()
    int32_t max_seqs;
    int32_t num_ctas; // attention_decode_num_ctas()
    bool is_settled;  // an earlier launch of attention_decode() in this step has read it
};

int32_t attention_decode_num_ctas(int32_t num_sms, int32_t num_kv_heads, int32_t num_heads);
size_t attention_decode_plan_bytes(int32_t max_seqs, int32_t num_ctas);
/** Bytes of scratch for partial results; its first `max_seqs * num_heads` words must be zeroed once
 *  before the first launch, and every launch leaves them zero. */
size_t attention_decode_scratch_bytes(const struct attention_decode_plan *plan, int32_t num_heads,
                                      int32_t head_dim);
/** Writes the plan for seq_lens [num_seqs] (0: a padded row, which gets no work). window 0: full.
 */
void attention_decode_plan_build(const struct cuda_launch *launch,
                                 const struct attention_decode_plan *plan, const int32_t *seq_lens,
                                 int32_t num_seqs, int32_t window);

struct attention_decode_args {
    void *out;     // [num_seqs, num_heads * head_dim]; rows of padded sequences stay as they are
    const void *q; // one row per sequence, q_stride elements apart
    int64_t q_stride;
    int32_t num_heads, max_blocks;
    const int32_t *block_table; // [num_seqs, max_blocks]
    float scale, softcap;       // softcap 0: none; else scores become softcap * tanh(s / softcap)
    struct cuda_kv_cache cache;
    struct attention_decode_plan plan;
    void *scratch;
};

/** One query token per sequence over its cached keys (its own included). KV is read once for all
 *  heads of a group. The grid depends on the model and the device alone. */
void attention_decode(const struct cuda_launch *launch, const struct attention_decode_args *args);

struct attention_prefill_args {
    void *out;     // [num_tokens, num_heads * head_dim]
    const void *q; // num_tokens rows, q_stride elements apart
    int64_t q_stride;
    int32_t num_heads, num_seqs, num_tokens, max_blocks;
    const int32_t *query_start; // [num_seqs + 1]: rows of sequence s
    const int32_t *seq_lens;    // [num_seqs]: cached tokens, this step's included
    const int32_t *block_table; // [num_seqs, max_blocks]
    float scale, softcap;       // as above
    int32_t window;             // 0: full; else a query at p sees keys k with p - k < window
    struct cuda_kv_cache cache;
};

/** Causal attention of any mix of prompts, chunks and decode rows in one launch. */
void attention_prefill(const struct cuda_launch *launch, const struct attention_prefill_args *args);

// ---- Matrix times few rows -----------------------------------------------------------------

enum { GEMV_MAX_ROWS = 16 };

struct gemv_args {
    void *out;               // [num_rows, n], or f32 if out_is_f32; SwiGLU: [num_rows, n / 2]
    const void *x;           // [num_rows, k], rows x_stride elements apart
    const void *weight;      // [n, k] row-major
    const float *bias;       // [n] or NULL
    const void *residual;    // added to the result, laid out as out; NULL: none; may be out itself
    const void *norm_weight; // [k] or NULL; else x is taken as rms_norm(x) * norm_weight
    float norm_eps;
    int64_t x_stride;
    int32_t num_rows, n, k; // num_rows <= GEMV_MAX_ROWS; k a multiple of 64
    bool is_swiglu;         // weight holds the gate's rows, then up's: out = silu(gate) * up
    bool out_is_f32;
    bool is_whole; // skinny_gemm() only: k is not cut, as batch-invariant products want it
};

/** Whether gemv() takes this shape. */
bool gemv_supports(int32_t num_rows, int32_t n, int32_t k, bool is_swiglu);
/** out = x * weight^T (+ bias, + residual) for up to 16 rows, at the speed of reading the weight.
 */
void gemv(const struct cuda_launch *launch, const struct gemv_args *args);

enum { SKINNY_GEMM_MAX_ROWS = 128 };

/** Whether skinny_gemm() takes this shape: k a multiple of 8. */
bool skinny_gemm_supports(int32_t num_rows, int32_t n, int32_t k, bool is_swiglu);
/** As gemv(), for up to SKINNY_GEMM_MAX_ROWS rows and without a norm. False, and nothing is
 *  launched: an address or the stride of x is not a multiple of 16 bytes. */
bool skinny_gemm(const struct cuda_launch *launch, const struct gemv_args *args);

// ---- Weights of e4m3 -----------------------------------------------------------------------

/** What stored e4m3 elements of a weight [n, k] are multiplied with. */
struct f8_scales {
    const float *values; // [n], or with a pitch: [ceil(n / 128), pitch], one for each 128 x 128
    int32_t pitch;       // 0: one for each row
};

/** As gemv(), for a weight of e4m3. `k` a multiple of 64, all pointers and strides of 16 bytes. */
void gemv_f8(const struct cuda_launch *launch, const struct gemv_args *args,
             struct f8_scales scales);
/** Whether gemv_f8() takes this shape, with a norm or without one. */
bool gemv_f8_supports(const struct cuda_launch *launch, const struct gemv_args *args);

enum { SKINNY_GEMM_MAX_ROWS_BLOCKS = 64 };

/** Whether skinny_gemm_f8() takes this shape: k a multiple of 16; with scales of blocks, no more
 *  than SKINNY_GEMM_MAX_ROWS_BLOCKS rows. */
bool skinny_gemm_f8_supports(int32_t num_rows, int32_t n, int32_t k, bool is_swiglu,
                             bool has_blocks);
/** As skinny_gemm(), for a weight and an x of e4m3. `x_scales`: [num_rows], or if the weight's have
 *  a pitch [ceil(k / 128), pitch], with numbers up to the next multiple of 32 rows. */
bool skinny_gemm_f8(const struct cuda_launch *launch, const struct gemv_args *args,
                    struct f8_scales weight_scales, struct f8_scales x_scales);

/** How activations become e4m3: stored times scale is the value. */
struct f8_quantize_args {
    void *out;       // [rows, k] e4m3
    float *scales;   // [rows], or with is_grouped [ceil(k / 128), scale_pitch]: of each 128 of k
    const void *x;   // [rows, k]
    float scale;     // of all; 0: the largest magnitude of the row (or group) becomes 448
    int32_t rows, k; // k a multiple of 8
    int32_t scale_pitch;
    bool is_grouped;
};
void f8_quantize(const struct cuda_launch *launch, const struct f8_quantize_args *args);

/** Rows [first, first + rows) of a weight [n, k] of e4m3, in full; any k. */
void f8_dequantize(const struct cuda_launch *launch, void *out, const void *weight,
                   struct f8_scales scales, int64_t first, int64_t rows, int64_t k);

// ---- Small fused kernels -------------------------------------------------------------------

/** x / sqrt(mean(x^2) + eps) * (offset + weight). */
struct cuda_norm {
    const void *weight; // [n]
    float eps, offset;
};

/** residual += x (x NULL: nothing added), out = norm(residual). All [rows, n], n a multiple of 8,
 *  at most 32768; out may be x. */
void cuda_add_rms_norm(const struct cuda_launch *launch, void *out, const void *x, void *residual,
                       struct cuda_norm norm, int32_t rows, int32_t n);

/** out = norm(x). [rows, n] as above. */
void cuda_rms_norm(const struct cuda_launch *launch, void *out, const void *x,
                   struct cuda_norm norm, int32_t rows, int32_t n);

/** residual += post(x), then x = pre(residual) unless pre has no weight. Both [rows, n], any n. */
void cuda_add_post_norm(const struct cuda_launch *launch, void *x, void *residual,
                        struct cuda_norm post, struct cuda_norm pre, int32_t rows, int32_t n);

/** x = cap * tanh(x / cap), f32. */
void cuda_soft_cap(const struct cuda_launch *launch, float *x, float cap, int64_t num_elements);

struct qkv_rope_args {
    void *qkv;      // [num_tokens, (num_heads + 2 num_kv_heads) * head_dim]; q in place
    int64_t stride; // elements between rows
    const void *q_norm, *k_norm; // [head_dim] or NULL: heads are not normalised
    float norm_eps, norm_offset; // of the weight
    const float *cos_sin;        // [max_position, rot_dim]: cosines, then sines
    int32_t rot_dim;             // half-split pairs; rot_dim / 2 a multiple of head_dim / 32
    const int32_t *positions;    // [num_tokens]
    const int64_t *slot_mapping; // [num_tokens]; negative: not cached
    int32_t num_tokens, num_heads;
    struct cuda_kv_cache cache;
};

/** Normalises and rotates q and k, and writes k and v to the cache, in one pass. */
void qkv_rope_cache(const struct cuda_launch *launch, const struct qkv_rope_args *args);

enum cuda_activation { CUDA_ACTIVATION_SILU, CUDA_ACTIVATION_GELU_TANH };

/** out = act(gate) * up; gate_up: [rows, 2n] (gate first), n a multiple of 8. */
void cuda_act_and_mul(const struct cuda_launch *launch, void *out, const void *gate_up,
                      enum cuda_activation act, int32_t rows, int32_t n);

/** out[i] = table[ids[i]] * scale; rows of n, a multiple of 8. Ids outside [0, num_rows) give 0. */
void cuda_gather_rows(const struct cuda_launch *launch, void *out, const void *table,
                      const int32_t *ids, float scale, int32_t num_ids, int32_t num_rows,
                      int32_t n);

/** out (f32) = x, num_elements a multiple of 8; cap > 0: cap * tanh(x / cap). */
void cuda_logits_to_f32(const struct cuda_launch *launch, float *out, const void *x, float cap,
                        int64_t num_elements);

// ---- Mixtures of experts -------------------------------------------------------------------

/** As struct expert_routes of the operations table. */
struct cuda_expert_routes {
    int32_t num_tokens, top_k, num_experts; // num_experts: at most 1024
    float *weights;                         // [num_tokens, top_k]
    int32_t *slots;                         // [num_tokens, top_k]
    int32_t *tokens;                        // [num_tokens * top_k]
    int32_t *expert_start;                  // [num_experts + 1]
    int32_t *tiles;                         // how many there are; for each: expert, first slot
};

/** Chooses, and sorts the choices by expert: within an expert in no particular order, which no
 *  result depends on. logits: [num_tokens, num_experts]. */
void cuda_route_experts(const struct cuda_launch *launch, const struct cuda_expert_routes *routes,
                        const float *logits, bool renormalises);

enum { ROUTER_MAX_TOKENS = 256, ROUTER_MAX_EXPERTS = 256 };

struct router_args {
    struct cuda_expert_routes routes;
    void *out;     // [num_tokens, n]: norm(x), what the experts read
    const void *x; // [num_tokens, n]
    struct cuda_norm norm;
    const void *weight; // [num_experts, n]
    int32_t n;
    bool renormalises;
};

/** Whether cuda_route_few() takes so many tokens of a router [num_experts, n]. */
bool cuda_routes_few(int32_t num_tokens, int32_t num_experts, int32_t n);

/** Norm, router and cuda_route_experts() in one, for few tokens. */
void cuda_route_few(const struct cuda_launch *launch, const struct router_args *args);

struct expert_matmul_args {
    void *out;                  // [slots, n]; SwiGLU: [slots, n / 2]
    const void *x;              // [slots, k], or with is_by_token [num_tokens, k]
    const void *const *weights; // [num_experts]: [n, k] each
    const void *stacked;        // where they begin if they lie behind one another; else NULL
    struct cuda_expert_routes routes;
    int32_t n, k;
    bool is_by_token;
    bool is_swiglu;  // a weight holds the gate's rows, then up's: out = silu(gate) * up
    bool is_settled; // a product that read these routes comes before this on the stream
};

/** out[slot] = x * weights[expert of the slot]^T, any n and k: on tensor cores where weights are
 *  stacked, k is a multiple of 8, and n of 8 or, with SwiGLU, of 16. A row's sums run over k in one
 *  order, whatever the tile it lies in. */
void cuda_matmul_experts(const struct cuda_launch *launch, const struct expert_matmul_args *args);

/** out[token] = (out[token] +) sum of weight * x[slot] over its choices, in order. [num_tokens, n],
 *  [slots, n]. */
void cuda_combine_experts(const struct cuda_launch *launch, void *out, const void *x,
                          const struct cuda_expert_routes *routes, int32_t n, bool adds);

// ---- Sampling ------------------------------------------------------------------------------

struct cuda_logit_bias {
    int32_t token_id;
    float bias;
};

/** One row's parameters; as struct sampling_params, lists in device memory. */
struct cuda_sampling_row {
    float temperature, top_p, min_p;
    float presence_penalty, frequency_penalty, repetition_penalty;
    uint64_t seed;
    int32_t top_k;
    int32_t min_tokens, num_forbidden;     // eos and stop tokens, impossible until min_tokens
    int32_t num_logit_bias, num_allowed;   // num_allowed 0: all
    int32_t num_logprobs;                  // -1: none; at most CUDA_MAX_LOGPROBS
    int32_t num_prompt_tokens, num_tokens; // of token_ids
    const int32_t *forbidden, *allowed;
    const struct cuda_logit_bias *logit_bias; // ids all different
    const int32_t *token_ids;                 // prompt, then outputs; read when a penalty is set
    const int32_t *last_token; // the last of them, where it is not among token_ids; else NULL
    const uint32_t *mask; // a bit for each token that may come, before anything else; NULL: all
};

enum { CUDA_MAX_LOGPROBS = 20 };

/** Largest vocabulary that fits: a row lives in the shared memory of eight multiprocessors. */
enum { CUDA_MAX_SAMPLED_VOCAB = 400000 };

/**
 * Draws one token per row, as worker/sampler.h says, token_ids[i] = -1 where a logit is NaN or
 * +infinity or none is finite, -2 where the row's parameters leave no token. logits:
 * [num_rows, stride] f32, only read. Weights are f32 exponentials, summed in f64 in a fixed order;
 * where top-k or top-p is on, tokens more than 32 nats below the likeliest are never drawn.
 */
void cuda_sample(const struct cuda_launch *launch, int32_t *token_ids, const float *logits,
                 int64_t stride, const struct cuda_sampling_row *rows, int32_t num_rows,
                 int32_t vocab_size);

/** For rows with num_logprobs >= 0: the log-probability of token_ids[i] under the logits that the
 *  mask leaves, then
 *  of the num_logprobs likeliest, equal ones by rising id. out_ids, out_logprobs: [num_rows,
 *  1 + CUDA_MAX_LOGPROBS]; out_ranks: [num_rows], how many are at least as likely. */
void cuda_sample_logprobs(const struct cuda_launch *launch, int32_t *out_ids, float *out_logprobs,
                          int32_t *out_ranks, const int32_t *token_ids, const float *logits,
                          int64_t stride, const struct cuda_sampling_row *rows, int32_t num_rows,
                          int32_t vocab_size);

#ifdef __cplusplus
}
#endif
