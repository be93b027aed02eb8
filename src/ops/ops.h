// The one table of operations on tensors. A backend fills it; layers call its front door, op_*().
//
// Destination first, as in memcpy. On the CPU activations are float32; a weight keeps the form it
// is multiplied in. Every operation is batch-invariant: a row's result, to the bit, depends on that
// row (for attention: on its own sequence) and never on what else is in the batch.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "ops/tensor.h"

/** The form a linear layer's weight is multiplied in. Later forms: fp8, int8, int4 groups, GGUF
 *  blocks; each may be packed by the backend when it is prepared. */
enum weight_form { WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16 };

/** A weight matrix [out_features, in_features] and its optional bias. */
struct weight {
    enum weight_form form;
    int64_t out_features, in_features;
    const void *data;  // rows of in_features elements, or what prepare_weight() made of them
    const float *bias; // [out_features] or NULL
    bool is_packed;    // data is the backend's own layout and belongs to it
};

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
};

/** One layer's part of the KV pool: keys then values, each [num_blocks, num_kv_heads, block_size,
 *  head_dim] of `dtype`. */
struct kv_cache {
    void *k, *v;
    enum dtype dtype; // F32, F16, BF16
    int32_t num_blocks, block_size, num_kv_heads, head_dim;
};

struct attention_params {
    float scale;
    int32_t window; // 0: full; else a query at p sees keys k with p - k < window
    int32_t num_heads;
};

struct device;

/** What a backend can do. Entries are never NULL unless they say so. */
struct ops {
    const char *name; // "cpu/scalar", "cpu/avx2", "cuda/sm90"

    void *(*alloc)(struct device *dev, size_t size_bytes); // NULL when it does not fit
    void (*free)(struct device *dev, void *ptr);
    void (*copy_in)(struct device *dev, void *dst, const void *host_src, size_t size_bytes);
    void (*copy_out)(struct device *dev, void *host_dst, const void *src, size_t size_bytes);
    /** Waits for all work; the device's own errors surface here. */
    enum status (*synchronize)(struct device *dev, struct error *err);

    /** Bytes that prepare_weight() will allocate on the device for this weight; 0: used in place.
     */
    size_t (*prepared_weight_bytes)(const struct device *dev, const struct weight *w);
    /** Turns a weight in host memory into the form this backend multiplies fastest; in place of
     *  `w->data`. Errors: OUT_OF_MEMORY. */
    enum status (*prepare_weight)(struct device *dev, struct weight *w, struct error *err);

    /** out[i] = table[ids[i]]; out: [num_tokens, hidden] f32, table: [vocab, hidden] f32/f16/bf16.
     */
    void (*embedding)(struct device *dev, struct tensor out, struct tensor table,
                      const int32_t *ids);
    /** out = x / rms(x) * weight; x, out: [rows, n] f32 (may be the same), weight: [n] f32. */
    void (*rms_norm)(struct device *dev, struct tensor out, struct tensor x, const float *weight,
                     float eps);
    /** residual += x, then x = rms_norm(residual). Both [rows, n] f32. */
    void (*add_rms_norm)(struct device *dev, struct tensor x, struct tensor residual,
                         const float *weight, float eps);
    /** out = x * w^T + bias; x: [rows, in] f32, out: [rows, out] f32. */
    void (*matmul)(struct device *dev, struct tensor out, struct tensor x, const struct weight *w);
    /** Rotates the first rot_dim of each head in place, half-split pairs. x: [num_tokens, num_heads
     * * head_dim] f32 with row stride `row_stride` elements; cos_sin: [max_position, rot_dim] f32,
     *  cosines then sines. */
    void (*rope)(struct device *dev, float *x, int64_t row_stride, int32_t num_heads,
                 int32_t head_dim, int32_t rot_dim, const float *cos_sin, const int32_t *positions,
                 int32_t num_tokens);
    /** Normalises each head of x in place (q/k norm). As rope for the layout; weight: [head_dim].
     */
    void (*head_rms_norm)(struct device *dev, float *x, int64_t row_stride, int32_t num_heads,
                          int32_t head_dim, const float *weight, float eps, int32_t num_tokens);
    /** Writes each token's key and value to its slot (block * block_size + offset; negative: none).
     *  k, v: rows of num_kv_heads * head_dim f32 with stride `row_stride`. */
    void (*kv_cache_write)(struct device *dev, const struct kv_cache *cache, const float *k,
                           const float *v, int64_t row_stride, const int64_t *slot_mapping,
                           int32_t num_tokens);
    /** out: [num_tokens, num_heads * head_dim] f32; q: the same with stride `row_stride`. The
     * step's own keys and values are in the cache already. Softmax in f32 over keys in order. */
    void (*attention)(struct device *dev, struct tensor out, const float *q, int64_t row_stride,
                      const struct kv_cache *cache, const struct attention_batch *batch,
                      const struct attention_params *params);
    /** out = silu(gate) * up; gate_up: [rows, 2n] f32 (gate first), out: [rows, n] f32. */
    void (*silu_and_mul)(struct device *dev, struct tensor out, struct tensor gate_up);
    /** out[i] = x[rows[i]]; both 2-d f32. */
    void (*gather_rows)(struct device *dev, struct tensor out, struct tensor x,
                        const int32_t *rows);
};

/** A device and its backend. Belongs to the worker's thread. */
struct device {
    struct ops ops;
    struct arena scratch; // host scratch of one operation; reset by the model runner each step
    int32_t num_threads;
};

/** Instruction sets of the CPU backend, weakest first. */
enum cpu_isa { CPU_ISA_SCALAR, CPU_ISA_AVX2, CPU_ISA_AUTO };

/** A CPU device. `isa` AUTO takes the best this machine has. Errors: UNSUPPORTED (the machine lacks
 *  `isa`). `num_threads` 0: as OpenMP says. */
NODISCARD enum status cpu_device_init(struct device *dev, enum cpu_isa isa, int32_t num_threads,
                                      struct error *err);
void device_deinit(struct device *dev);

/** "scalar", "avx2", "auto". NOT_FOUND otherwise. */
NODISCARD enum status cpu_isa_parse(struct str text, enum cpu_isa *out);

// The front door: checks shapes once for every backend, then calls the table.
void op_embedding(struct device *dev, struct tensor out, struct tensor table, const int32_t *ids);
void op_rms_norm(struct device *dev, struct tensor out, struct tensor x, const float *weight,
                 float eps);
void op_add_rms_norm(struct device *dev, struct tensor x, struct tensor residual,
                     const float *weight, float eps);
void op_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w);
void op_rope(struct device *dev, float *x, int64_t row_stride, int32_t num_heads, int32_t head_dim,
             int32_t rot_dim, const float *cos_sin, const int32_t *positions, int32_t num_tokens);
void op_head_rms_norm(struct device *dev, float *x, int64_t row_stride, int32_t num_heads,
                      int32_t head_dim, const float *weight, float eps, int32_t num_tokens);
void op_kv_cache_write(struct device *dev, const struct kv_cache *cache, const float *k,
                       const float *v, int64_t row_stride, const int64_t *slot_mapping,
                       int32_t num_tokens);
void op_attention(struct device *dev, struct tensor out, const float *q, int64_t row_stride,
                  const struct kv_cache *cache, const struct attention_batch *batch,
                  const struct attention_params *params);
void op_silu_and_mul(struct device *dev, struct tensor out, struct tensor gate_up);
void op_gather_rows(struct device *dev, struct tensor out, struct tensor x, const int32_t *rows);
