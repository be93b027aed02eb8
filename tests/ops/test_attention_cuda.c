// Keys and values into the cache and attention over it on the CUDA backend, against the portable
// reference, step after step.
#include "ops/gpu_bench.h"

struct attention_case {
    int32_t num_heads, num_kv_heads, head_dim, rot_dim;
    int32_t window, block_size;
    bool has_norm, is_fp8;
    float softcap, norm_offset;
};

enum { NUM_SEQS = 5, MAX_LEN = 700 };
static const int32_t seq_lens[NUM_SEQS] = {37, 1, 150, 64, 651};

/** Both devices' caches and the arrays of one step. */
struct attention_run {
    const struct attention_case *shape;
    struct kv_cache gpu, cpu;
    int32_t max_blocks;
    float *cos_sin, *q_norm, *k_norm;
    void *gpu_cos_sin, *gpu_q_norm, *gpu_k_norm;
};

static void start_run(struct bench *b, struct attention_run *run, const struct attention_case *c)
{
    *run = (struct attention_run){.shape = c};
    run->max_blocks = (int32_t)ceil_div(MAX_LEN, c->block_size) + 1;
    run->cpu = (struct kv_cache){.dtype = c->is_fp8 ? DTYPE_F8_E4M3 : b->gpu.activation_dtype,
                                 .num_blocks = NUM_SEQS * run->max_blocks,
                                 .block_size = c->block_size,
                                 .num_kv_heads = c->num_kv_heads,
                                 .head_dim = c->head_dim,
                                 .k_scale = 0.02f,
                                 .v_scale = 0.5f};
    size_t bytes = (size_t)run->cpu.num_blocks * (size_t)c->block_size * (size_t)c->num_kv_heads *
                   (size_t)c->head_dim * dtype_size(run->cpu.dtype);
    run->cpu.k = arena_alloc(&b->arena, bytes);
    run->cpu.v = arena_alloc(&b->arena, bytes);
    memset(run->cpu.k, 0xFF, bytes); // NaN: a key that must not be read shows
    memset(run->cpu.v, 0xFF, bytes);
    run->gpu = run->cpu;
    run->gpu.k = to_gpu(b, run->cpu.k, bytes);
    run->gpu.v = to_gpu(b, run->cpu.v, bytes);
    run->cos_sin = randoms(b, (int64_t)MAX_LEN * c->rot_dim);
    run->gpu_cos_sin =
        to_gpu(b, run->cos_sin, (size_t)MAX_LEN * (size_t)c->rot_dim * sizeof(float) + 4);
    if (c->has_norm) {
        run->q_norm = randoms(b, c->head_dim);
        run->k_norm = randoms(b, c->head_dim);
        run->gpu_q_norm = rounded_to_gpu(b, run->q_norm, c->head_dim);
        run->gpu_k_norm = rounded_to_gpu(b, run->k_norm, c->head_dim);
    }
}

static void stop_run(struct bench *b, struct attention_run *run)
{
    release(b, run->gpu.k);
    release(b, run->gpu.v);
    release(b, run->gpu_cos_sin);
    release(b, run->gpu_q_norm);
    release(b, run->gpu_k_norm);
    arena_reset(&b->arena);
}

/** One step: the tokens [from[s], to[s]) of each sequence, and `num_padding` sequences of none. */
static void check_step(struct bench *b, struct attention_run *run, const int32_t *from,
                       const int32_t *to, int32_t num_padding)
{
    const struct attention_case *c = run->shape;
    enum { MAX_ROWS = NUM_SEQS * MAX_LEN };
    int32_t *positions = arena_array(&b->arena, int32_t, MAX_ROWS);
    int32_t *token_seq = arena_array(&b->arena, int32_t, MAX_ROWS);
    int64_t *slots = arena_array(&b->arena, int64_t, MAX_ROWS);
    int32_t query_start[NUM_SEQS + 4] = {0}, lens[NUM_SEQS + 4] = {0};
    int32_t *table =
        arena_calloc(&b->arena, (size_t)(NUM_SEQS + 4) * (size_t)run->max_blocks, sizeof(int32_t));
    struct attention_batch batch = {.max_blocks = run->max_blocks};
    int32_t num_real = 0;
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        if (from[s] >= to[s])
            continue;
        int32_t i = batch.num_seqs++;
        for (int32_t c2 = 0; c2 < run->max_blocks; c2++)
            table[i * run->max_blocks + c2] = (c2 * NUM_SEQS + s);
        // Blocks that slid out of the window are not there: far outside the pool.
        for (int32_t c2 = 0; c->window > 0 && (c2 + 1) * c->block_size <= from[s] + 1 - c->window;
             c2++)
            table[i * run->max_blocks + c2] = -(1 << 19);
        for (int32_t p = from[s]; p < to[s]; p++) {
            int32_t row = batch.num_tokens++;
            positions[row] = p;
            token_seq[row] = i;
            slots[row] = (int64_t)table[i * run->max_blocks + p / c->block_size] * c->block_size +
                         p % c->block_size;
        }
        lens[i] = to[s];
        query_start[i + 1] = batch.num_tokens;
        batch.max_seq_len = max_i32(batch.max_seq_len, to[s]);
        batch.max_query_len = max_i32(batch.max_query_len, to[s] - from[s]);
    }
    num_real = batch.num_tokens;
    for (int32_t i = 0; i < num_padding; i++) {
        int32_t row = batch.num_tokens++, seq = batch.num_seqs++;
        positions[row] = 0;
        token_seq[row] = seq;
        slots[row] = -1;
        query_start[seq + 1] = batch.num_tokens;
    }
    int64_t rows = batch.num_tokens;
    int64_t q_cols = (int64_t)c->num_heads * c->head_dim;
    int64_t cols = q_cols + 2 * (int64_t)c->num_kv_heads * c->head_dim;
    float *qkv = randoms(b, rows * cols);
    struct tensor gpu_qkv = matrix_to_gpu(b, qkv, rows, cols);
    struct tensor cpu_qkv = tensor_2d(qkv, DTYPE_F32, num_real, cols);
    struct tensor gpu_out = matrix_to_gpu(b, floats(b, rows * q_cols), rows, q_cols);
    float *expected = floats(b, rows * q_cols);

    struct qkv_params params = {.num_heads = c->num_heads,
                                .q_norm = run->q_norm,
                                .k_norm = run->k_norm,
                                .eps = eps,
                                .norm_weight_offset = c->norm_offset,
                                .cos_sin = run->cos_sin,
                                .rot_dim = c->rot_dim};
    struct attention_params attention = {.scale = 1.0f / sqrtf((float)c->head_dim),
                                         .window = c->window,
                                         .num_heads = c->num_heads,
                                         .softcap = c->softcap};
    op_prepare_qkv(&b->cpu, cpu_qkv, &run->cpu, &params, positions, slots);
    for (int64_t i = 0; i < num_real * cols; i++)
        qkv[i] = rounded(b, qkv[i]); // as the GPU keeps the queries
    struct attention_batch cpu_batch = batch;
    cpu_batch.num_tokens = num_real;
    cpu_batch.num_seqs -= num_padding;
    cpu_batch.query_start = query_start;
    cpu_batch.seq_lens = lens;
    cpu_batch.block_table = table;
    cpu_batch.token_seq = token_seq;
    cpu_batch.positions = positions;
    op_attention(&b->cpu, tensor_2d(expected, DTYPE_F32, num_real, q_cols),
                 tensor_columns(cpu_qkv, 0, q_cols), &run->cpu, &cpu_batch, &attention);

    int32_t *gpu_positions = to_gpu(b, positions, (size_t)rows * 4);
    int32_t *gpu_token_seq = to_gpu(b, token_seq, (size_t)rows * 4);
    int64_t *gpu_slots = to_gpu(b, slots, (size_t)rows * 8);
    int32_t *gpu_query_start = to_gpu(b, query_start, sizeof(query_start));
    int32_t *gpu_lens = to_gpu(b, lens, sizeof(lens));
    int32_t *gpu_table =
        to_gpu(b, table, (size_t)(NUM_SEQS + 4) * (size_t)run->max_blocks * sizeof(int32_t));
    batch.query_start = gpu_query_start;
    batch.seq_lens = gpu_lens;
    batch.block_table = gpu_table;
    batch.token_seq = gpu_token_seq;
    batch.positions = gpu_positions;
    params.q_norm = run->gpu_q_norm;
    params.k_norm = run->gpu_k_norm;
    params.cos_sin = run->gpu_cos_sin;
    op_prepare_qkv(&b->gpu, gpu_qkv, &run->gpu, &params, gpu_positions, gpu_slots);
    op_attention(&b->gpu, gpu_out, tensor_columns(gpu_qkv, 0, q_cols), &run->gpu, &batch,
                 &attention);
    const float *got_qkv = from_gpu(b, gpu_qkv);
    for (int64_t r = 0; r < num_real; r++) // twice the rounding: it may fall to either side
        assert_close(got_qkv + r * cols, qkv + r * cols, q_cols, 2 * rounding(b), rounding(b) / 2,
                     "queries");
    // A key that lies between two e4m3 numbers may fall to either side: an eighth of it.
    assert_close(from_gpu(b, gpu_out), expected, num_real * q_cols, 4 * rounding(b),
                 c->is_fp8 ? 0.15 : 6 * rounding(b), "attention");
    release(b, gpu_qkv.data);
    release(b, gpu_out.data);
    release(b, gpu_positions);
    release(b, gpu_token_seq);
    release(b, gpu_slots);
    release(b, gpu_query_start);
    release(b, gpu_lens);
    release(b, gpu_table);
}

static void attention_is_right_for_prompts_chunks_decoding_and_mixtures(void **state)
{
    struct bench *b = bench_of(state);
    static const struct attention_case cases[] = {
        {4, 2, 32, 32, 0, 16, true, false, 0, 0},
        {32, 8, 128, 128, 0, 16, true, false, 0, 0},
        {16, 8, 128, 128, 0, 16, true, false, 0, 0},
        {6, 2, 64, 64, 0, 16, false, false, 0, 0},
        {4, 1, 16, 16, 0, 16, true, false, 0, 0},
        {8, 2, 64, 64, 32, 16, false, false, 0, 0},
        {3, 3, 20, 10, 0, 8, false, false, 0, 0},
        {28, 4, 128, 128, 45, 32, false, false, 0, 0},
        {8, 1, 256, 256, 0, 16, true, false, 0, 0},
        {12, 12, 96, 96, 0, 16, false, false, 0, 0},
        {4, 2, 64, 32, 0, 16, true, false, 0, 0},
        {40, 8, 128, 128, 100, 16, false, false, 0, 0},
        {32, 8, 128, 128, 0, 16, true, true, 0, 0},
        {6, 2, 64, 64, 0, 16, false, true, 0, 0},
        {8, 1, 256, 256, 0, 16, true, true, 0, 0},
        {28, 4, 128, 128, 45, 32, false, true, 0, 0},
        {3, 3, 20, 10, 0, 8, false, true, 0, 0},
        {4, 2, 32, 32, 0, 16, true, true, 0, 0},
        {8, 4, 256, 256, 64, 16, false, false, 2, 0},
        {4, 2, 128, 128, 0, 16, true, false, 3, 1},
        {4, 1, 16, 16, 24, 16, true, false, 2, 1},
        {8, 4, 128, 128, 0, 16, true, true, 3, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct attention_run run;
        print_message("heads %d/%d of %d, window %d, block %d%s\n", cases[i].num_heads,
                      cases[i].num_kv_heads, cases[i].head_dim, cases[i].window,
                      cases[i].block_size, cases[i].is_fp8 ? ", e4m3" : "");
        start_run(b, &run, &cases[i]);
        int32_t from[NUM_SEQS] = {0}, to[NUM_SEQS];
        for (int s = 0; s < NUM_SEQS; s++) // whole prompts, the long one in part
            to[s] = min_i32(seq_lens[s], 320);
        check_step(b, &run, from, to, 0);
        for (int s = 0; s < NUM_SEQS; s++) // decoding beside a chunk
            from[s] = to[s], to[s] = s == 4 ? seq_lens[s] : to[s] + 1;
        check_step(b, &run, from, to, 0);
        for (int turn = 0; turn < 3; turn++) { // decoding alone, some of it padding
            for (int s = 0; s < NUM_SEQS; s++)
                from[s] = to[s], to[s]++;
            check_step(b, &run, from, to, turn);
        }
        for (int s = 0; s < NUM_SEQS; s++) // one sequence alone
            from[s] = to[s], to[s] += s == 4;
        check_step(b, &run, from, to, 0);
        stop_run(b, &run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_right_for_prompts_chunks_decoding_and_mixtures),
    };
    return run_in_both_types(tests);
}
