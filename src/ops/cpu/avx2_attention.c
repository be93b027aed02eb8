// Attention over the paged KV cache with AVX2.
//
// A query head's result is defined by its position alone: keys are visited in chunks of 32 that lie
// at multiples of 32 of the absolute position, whatever the blocks, the batch, or how the prompt
// was cut; within a chunk a score is one dot product, the maximum and the sum of the exponentials
// run over all 32 lanes (0 where a key is not seen), and values are added in order of the keys it
// sees. Between chunks the running maximum rescales what was gathered (online softmax,
// arXiv:1805.02867).
//
// A work item is a key head and a tile of queries: the heads of its group times some tokens. Keys
// and values of a chunk are turned into f32 once for the whole tile.
#if defined(__x86_64__)
#include <math.h>

#include <omp.h>

#include "ops/cpu/avx2_math.h"

enum {
    CHUNK_KEYS = 32,
    CHUNK_VECTORS = CHUNK_KEYS / LANES,
    MAX_TILE_QUERIES = 48, // unless one token has more heads in a group
};

/** Consecutive tokens of one sequence. */
struct query_tile {
    int32_t seq, row, num_tokens;
};

struct attention {
    struct tensor out;
    const float *q;
    int64_t q_stride;
    const struct kv_cache *cache;
    const struct attention_batch *batch;
    const struct attention_params *params;
    int32_t group;      // query heads of a key head
    int64_t padded_dim; // head_dim up to whole vectors
    int64_t key_bytes;  // of one head in the cache
};

/** One thread's. Rows are queries: token of the tile * group + head of the group. */
struct tile_scratch {
    float *q, *out;       // [queries, padded_dim]
    float *keys, *values; // [CHUNK_KEYS, padded_dim]
    float *probs;         // [queries, CHUNK_KEYS]: scores, then exponentials
    float *max, *sum;     // [queries]
};

static int32_t tile_tokens(int32_t group)
{
    return max_i32(1, MAX_TILE_QUERIES / group);
}

static void scratch_init(struct tile_scratch *s, struct arena *arena, const struct attention *a)
{
    size_t queries = (size_t)tile_tokens(a->group) * (size_t)a->group;
    size_t dim = (size_t)a->padded_dim;
    s->q = arena_array(arena, float, queries *dim);
    s->out = arena_array(arena, float, queries *dim);
    s->keys = arena_array(arena, float, CHUNK_KEYS *dim);
    s->values = arena_array(arena, float, CHUNK_KEYS *dim);
    s->probs = arena_array(arena, float, queries *CHUNK_KEYS);
    s->max = arena_array(arena, float, queries);
    s->sum = arena_array(arena, float, queries);
}

/** Where the key (and the value) of one position lies in the cache, in bytes. `column` and `block`
 *  remember the last look into the block table. */
static int64_t key_offset(const struct attention *a, int32_t seq, int32_t kv_head, int32_t key,
                          int32_t *column, int32_t *block)
{
    const struct kv_cache *cache = a->cache;
    if (key / cache->block_size != *column) {
        *column = key / cache->block_size;
        *block = cpu_block_of(cache, a->batch, seq, key);
    }
    int64_t row = ((int64_t)*block * cache->num_kv_heads + kv_head) * cache->block_size +
                  key % cache->block_size;
    return row * a->key_bytes;
}

static void unpack_cached(const struct kv_cache *cache, float *out, const void *data, float scale)
{
    if (cache->dtype == DTYPE_F8_E4M3)
        avx2_unpack_f8(out, data, scale, cache->head_dim);
    else
        avx2_unpack(weight_form_of(cache->dtype), out, data, cache->head_dim);
}

/** Keys and values [first, end) of a chunk as f32, key j at row j % CHUNK_KEYS, while memory is
 *  asked for those of the next chunk, up to `last`. No other entry of the block table is read. */
static void load_chunk(const struct attention *a, struct tile_scratch *s, int32_t seq,
                       int32_t kv_head, int32_t first, int32_t end, int32_t last)
{
    enum { LINE_BYTES = 64 };
    const char *k = a->cache->k, *v = a->cache->v;
    int32_t column = -1, block = 0, next_column = -1, next_block = 0;
    for (int32_t key = first; key < end; key++) {
        if (key + CHUNK_KEYS < last) {
            int64_t next = key_offset(a, seq, kv_head, key + CHUNK_KEYS, &next_column, &next_block);
            for (int64_t i = 0; i < a->key_bytes; i += LINE_BYTES) {
                _mm_prefetch(k + next + i, _MM_HINT_T0);
                _mm_prefetch(v + next + i, _MM_HINT_T0);
            }
        }
        int64_t from = key_offset(a, seq, kv_head, key, &column, &block);
        int64_t to = key % CHUNK_KEYS * a->padded_dim;
        unpack_cached(a->cache, s->keys + to, k + from, a->cache->k_scale);
        unpack_cached(a->cache, s->values + to, v + from, a->cache->v_scale);
    }
}

ALWAYS_INLINE void score_tile(int rows, const struct attention *a, struct tile_scratch *s,
                              int32_t row, int32_t key, int32_t end)
{
    __m256 acc[TILE_ROWS][TILE_COLS];
    const char *keys[TILE_COLS];
#pragma GCC unroll 4
    for (int c = 0; c < TILE_COLS; c++) {
        keys[c] = (const char *)(s->keys + min_i32(key + c, end - 1) * a->padded_dim);
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
            acc[r][c] = _mm256_setzero_ps();
    }
    dot_tile(rows, WEIGHT_F32, acc, s->q + row * a->padded_dim, a->padded_dim, keys, a->padded_dim,
             0);
    __m128 scale = _mm_set1_ps(a->params->scale);
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
        __m128 sum = sum_lanes_x4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
        float *to = s->probs + (row + r) * CHUNK_KEYS + key;
        if (end - key >= TILE_COLS)
            _mm_storeu_ps(to, _mm_mul_ps(sum, scale));
        else
            _mm_maskstore_ps(to, _mm256_castsi256_si128(lane_mask(end - key)),
                             _mm_mul_ps(sum, scale));
    }
}

/** Scores of all queries for keys [first, end) of the chunk. */
static void score_chunk(const struct attention *a, struct tile_scratch *s, int32_t num_queries,
                        int32_t first, int32_t end)
{
    for (int32_t row = 0; row < num_queries; row += TILE_ROWS) {
        for (int32_t key = first; key < end; key += TILE_COLS) {
            if (num_queries - row >= 3)
                score_tile(3, a, s, row, key, end);
            else if (num_queries - row == 2)
                score_tile(2, a, s, row, key, end);
            else
                score_tile(1, a, s, row, key, end);
        }
    }
}

/** Turns one query's scores of keys [first, end) into exponentials and rescales its past. */
static void soften(const struct attention *a, struct tile_scratch *s, int32_t row, int32_t first,
                   int32_t end)
{
    float *probs = s->probs + row * CHUNK_KEYS;
    const __m256 minus_infinity = _mm256_set1_ps(-INFINITY);
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 score[CHUNK_VECTORS], is_seen[CHUNK_VECTORS], max = minus_infinity;
    for (int i = 0; i < CHUNK_VECTORS; i++) {
        __m256i key = _mm256_add_epi32(index, _mm256_set1_epi32(i * LANES));
        is_seen[i] = _mm256_castsi256_ps(
            _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), key),
                                _mm256_cmpgt_epi32(_mm256_set1_epi32(end), key)));
        score[i] = _mm256_loadu_ps(probs + i * LANES);
        if (a->params->softcap > 0)
            score[i] = soft_cap8(score[i], a->params->softcap);
        score[i] = _mm256_blendv_ps(minus_infinity, score[i], is_seen[i]);
        max = _mm256_max_ps(max, score[i]);
    }
    float new_max = fmaxf(s->max[row], max_lanes(max));
    __m256 e[CHUNK_VECTORS];
    for (int i = 0; i < CHUNK_VECTORS; i++) {
        e[i] = exp8(_mm256_sub_ps(score[i], _mm256_set1_ps(new_max)));
        e[i] = _mm256_and_ps(e[i], is_seen[i]);
        _mm256_storeu_ps(probs + i * LANES, e[i]);
    }
    float sum = sum_lanes(_mm256_add_ps(_mm256_add_ps(e[0], e[1]), _mm256_add_ps(e[2], e[3])));
    if (new_max != s->max[row]) {
        __m256 shrink = exp8(_mm256_set1_ps(s->max[row] - new_max));
        s->sum[row] *= _mm256_cvtss_f32(shrink);
        float *out = s->out + row * a->padded_dim;
        for (int64_t i = 0; i < a->padded_dim; i += LANES)
            _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(out + i), shrink));
        s->max[row] = new_max;
    }
    s->sum[row] += sum;
}

/** out[row][i..] += probability * value for keys [first, end), in order. */
ALWAYS_INLINE void value_tile(int rows, int vectors, const struct attention *a,
                              struct tile_scratch *s, int32_t row, int64_t i, int32_t first,
                              int32_t end)
{
    __m256 acc[TILE_ROWS][TILE_COLS];
    float *out = s->out + row * a->padded_dim + i;
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++)
            acc[r][c] = _mm256_loadu_ps(out + r * a->padded_dim + c * LANES);
    }
    for (int32_t key = first; key < end; key++) {
        __m256 p[TILE_ROWS];
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++)
            p[r] = _mm256_broadcast_ss(s->probs + (row + r) * CHUNK_KEYS + key);
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++) {
            __m256 value = _mm256_loadu_ps(s->values + key * a->padded_dim + i + c * LANES);
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++)
                acc[r][c] = _mm256_fmadd_ps(p[r], value, acc[r][c]);
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < vectors; c++)
            _mm256_storeu_ps(out + r * a->padded_dim + c * LANES, acc[r][c]);
    }
}

ALWAYS_INLINE void value_rows(int rows, const struct attention *a, struct tile_scratch *s,
                              int32_t row, int32_t first, int32_t end)
{
    int64_t i = 0;
    for (; i + TILE_COLS * LANES <= a->padded_dim; i += TILE_COLS * LANES)
        value_tile(rows, TILE_COLS, a, s, row, i, first, end);
    for (; i < a->padded_dim; i += LANES)
        value_tile(rows, 1, a, s, row, i, first, end);
}

/** The keys of a chunk that a token sees, relative to the chunk. */
static void seen_keys(const struct attention *a, int32_t position, int32_t chunk, int32_t *first,
                      int32_t *end)
{
    *first = max_i32(cpu_first_key(a->params, position) - chunk, 0);
    *end = min_i32(position + 1 - chunk, CHUNK_KEYS);
}

static void add_chunk(const struct attention *a, struct tile_scratch *s,
                      const struct query_tile *tile, int32_t chunk)
{
    int32_t num_queries = tile->num_tokens * a->group;
    for (int32_t row = 0; row < num_queries;) {
        int32_t first, end, rows = 0;
        seen_keys(a, a->batch->positions[tile->row + row / a->group], chunk, &first, &end);
        // Rows that see the same keys share the loads of the values.
        while (rows < TILE_ROWS && row + rows < num_queries) {
            int32_t other_first, other_end;
            seen_keys(a, a->batch->positions[tile->row + (row + rows) / a->group], chunk,
                      &other_first, &other_end);
            if (other_first != first || other_end != end)
                break;
            rows++;
        }
        if (first < end) {
            for (int32_t r = row; r < row + rows; r++)
                soften(a, s, r, first, end);
            if (rows == 3)
                value_rows(3, a, s, row, first, end);
            else if (rows == 2)
                value_rows(2, a, s, row, first, end);
            else
                value_rows(1, a, s, row, first, end);
        }
        row += rows;
    }
}

/** Queries of the tile as rows, padded with zeros; nothing gathered yet. */
static void start_tile(const struct attention *a, struct tile_scratch *s,
                       const struct query_tile *tile, int32_t kv_head)
{
    int32_t head_dim = a->cache->head_dim;
    size_t row_bytes = (size_t)head_dim * sizeof(float);
    size_t pad_bytes = (size_t)a->padded_dim * sizeof(float) - row_bytes;
    for (int32_t row = 0; row < tile->num_tokens * a->group; row++) {
        const float *q = a->q + (tile->row + row / a->group) * a->q_stride +
                         ((int64_t)kv_head * a->group + row % a->group) * head_dim;
        float *to = s->q + row * a->padded_dim;
        memcpy(to, q, row_bytes);
        memset(to + head_dim, 0, pad_bytes);
        memset(s->out + row * a->padded_dim, 0, row_bytes + pad_bytes);
        s->max[row] = -INFINITY;
        s->sum[row] = 0;
    }
    for (int32_t key = 0; key < CHUNK_KEYS; key++) {
        memset(s->keys + key * a->padded_dim + head_dim, 0, pad_bytes);
        memset(s->values + key * a->padded_dim + head_dim, 0, pad_bytes);
    }
}

static void finish_tile(const struct attention *a, const struct tile_scratch *s,
                        const struct query_tile *tile, int32_t kv_head)
{
    int32_t head_dim = a->cache->head_dim;
    for (int32_t row = 0; row < tile->num_tokens * a->group; row++) {
        int64_t head = (int64_t)kv_head * a->group + row % a->group;
        float *to =
            (float *)a->out.data + (tile->row + row / a->group) * a->out.shape[1] + head * head_dim;
        const float *from = s->out + row * a->padded_dim;
        for (int32_t i = 0; i < head_dim; i++)
            to[i] = from[i] / s->sum[row];
    }
}

static void attend_tile(const struct attention *a, struct tile_scratch *s,
                        const struct query_tile *tile, int32_t kv_head)
{
    const int32_t *positions = a->batch->positions + tile->row;
    int32_t first = cpu_first_key(a->params, positions[0]); // positions rise within a sequence
    int32_t end = positions[tile->num_tokens - 1] + 1;
    CHECK(end <= a->batch->seq_lens[tile->seq]);
    start_tile(a, s, tile, kv_head);
    for (int32_t chunk = first / CHUNK_KEYS * CHUNK_KEYS; chunk < end; chunk += CHUNK_KEYS) {
        int32_t chunk_first = max_i32(first, chunk), chunk_end = min_i32(end, chunk + CHUNK_KEYS);
        load_chunk(a, s, tile->seq, kv_head, chunk_first, chunk_end, end);
        score_chunk(a, s, tile->num_tokens * a->group, chunk_first - chunk, chunk_end - chunk);
        add_chunk(a, s, tile, chunk);
    }
    finish_tile(a, s, tile, kv_head);
}

void avx2_attention(struct device *dev, struct tensor out, struct tensor q,
                    const struct kv_cache *cache, const struct attention_batch *batch,
                    const struct attention_params *params)
{
    struct attention a = {
        .out = out,
        .q = q.data,
        .q_stride = q.row_stride,
        .cache = cache,
        .batch = batch,
        .params = params,
        .group = params->num_heads / cache->num_kv_heads,
        .padded_dim = round_up_lanes(cache->head_dim),
        .key_bytes = cache->head_dim * (int64_t)dtype_size(cache->dtype),
    };
    struct arena *arena = &dev->scratch;
    struct arena_mark mark = arena_mark(arena);
    int32_t num_tiles = 0, max_tokens = tile_tokens(a.group);
    struct query_tile *tiles = arena_array(arena, struct query_tile, batch->num_tokens);
    // The longest past last in a sequence: taken from the end, long items come first.
    for (int32_t seq = 0; seq < batch->num_seqs; seq++) {
        int32_t end = batch->query_start[seq + 1];
        for (int32_t row = batch->query_start[seq]; row < end; row += max_tokens)
            tiles[num_tiles++] = (struct query_tile){seq, row, min_i32(max_tokens, end - row)};
    }
    int32_t num_items = num_tiles * cache->num_kv_heads;
    int64_t work = (int64_t)batch->num_tokens * params->num_heads * batch->max_seq_len;
    int threads = min_i32(cpu_threads_for(dev, work * cache->head_dim), num_items);
    struct tile_scratch *scratch = arena_array(arena, struct tile_scratch, threads);
    for (int i = 0; i < threads; i++)
        scratch_init(&scratch[i], arena, &a);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int32_t item = num_items - 1; item >= 0; item--)
        attend_tile(&a, &scratch[omp_get_thread_num()], &tiles[item / cache->num_kv_heads],
                    item % cache->num_kv_heads);
    cpu_scratch_end(arena, mark);
}
#else
typedef int avx2_attention_is_for_x86_only; // a translation unit must not be empty
#endif
