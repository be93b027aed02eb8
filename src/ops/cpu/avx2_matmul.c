// out = x * w^T + bias with AVX2, weights read where they lie.
//
// Every out[m][n] is one chain: eight lanes, k in steps of eight, fused multiply-adds in order of
// k, the rest of a row padded with zeros; then one fixed sum of the lanes, then the bias. Both
// paths below run that chain, so a row's result is the same in a batch of any size.
//
//  - few rows: tiles of up to 3 rows x 4 weights straight from memory, which is what bounds it; a
//    second tile finds the weights in the first-level cache;
//  - many rows: a panel of 8 weights x 512 is turned into f32 once and used by up to 96 rows; the
//    chains wait in memory, in all eight lanes, while the next 512 are prepared.
#if defined(__x86_64__)
#include <omp.h>

#include "ops/cpu/avx2_math.h"

enum {
    DIRECT_MAX_ROWS = 12, // from here on unpacking once wins over unpacking per tile
    PANEL_COLS = 8,
    PANEL_K = 512,          // a multiple of WEIGHT_BLOCK
    BLOCK_ROWS = 96,        // a multiple of TILE_ROWS
    JOB_BYTES = 512 * 1024, // weights read in one go; shorter ones keep hardware prefetch from
                            // getting under way
    PREFETCH_BYTES = 1024,
    MAX_PREFETCH_BYTES = 32 * 1024, // of the first-level cache
};

struct matmul {
    const float *x;
    float *out;
    const char *w;
    const float *bias;
    int64_t rows, k, n, out_stride;
    int64_t w_row_bytes, prefetch_bytes;
    const struct weight_scales *scales; // of e4m3
};

/** One thread's: 16 KiB of weights in f32 and 24 KiB of sums on their way. */
struct panel_scratch {
    _Alignas(64) float weights[PANEL_COLS][PANEL_K];
    float sums[BLOCK_ROWS / TILE_ROWS][PANEL_COLS / TILE_COLS][TILE_ROWS][TILE_COLS][LANES];
};

/** Four weight rows from n on; past the end the last one again, whose results are dropped. */
static void tile_weights(const struct matmul *m, int64_t n, const char *w[TILE_COLS])
{
    for (int c = 0; c < TILE_COLS; c++)
        w[c] = m->w + min_i64(n + c, m->n - 1) * m->w_row_bytes;
}

ALWAYS_INLINE void zero_tile(int rows, __m256 acc[TILE_ROWS][TILE_COLS])
{
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < TILE_COLS; c++)
            acc[r][c] = _mm256_setzero_ps();
    }
}

/** Sums the lanes, adds the bias and stores what lies inside the matrix. */
ALWAYS_INLINE void finish_tile(int rows, __m256 acc[TILE_ROWS][TILE_COLS], const struct matmul *m,
                               int64_t row, int64_t n)
{
    float bias[TILE_COLS] = {0};
    int64_t cols = min_i64(TILE_COLS, m->n - n);
    for (int64_t c = 0; m->bias && c < cols; c++)
        bias[c] = m->bias[n + c];
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
        __m128 sum = sum_lanes_x4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
        sum = _mm_add_ps(sum, _mm_loadu_ps(bias));
        float *out = m->out + (row + r) * m->out_stride + n;
        if (cols == TILE_COLS)
            _mm_storeu_ps(out, sum);
        else
            _mm_maskstore_ps(out, _mm256_castsi256_si128(lane_mask(cols)), sum);
    }
}

ALWAYS_INLINE void direct_tile(int rows, enum weight_form form, const struct matmul *m, int64_t row,
                               int64_t n)
{
    const char *w[TILE_COLS];
    tile_weights(m, n, w);
    const float *x = m->x + row * m->k;
    __m256 acc[TILE_ROWS][TILE_COLS];
    zero_tile(rows, acc);
    int64_t whole = m->k / LANES * LANES, rest = m->k - whole;
    dot_tile(rows, form, acc, x, m->k, w, whole, row == 0 ? m->prefetch_bytes : 0);
    if (rest > 0) {
        __m256i mask = lane_mask(rest);
#pragma GCC unroll 4
        for (int c = 0; c < TILE_COLS; c++) {
            __m256 w8 = load8_tail(form, w[c], whole, rest);
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++)
                acc[r][c] =
                    _mm256_fmadd_ps(_mm256_maskload_ps(x + r * m->k + whole, mask), w8, acc[r][c]);
        }
    }
    finish_tile(rows, acc, m, row, n);
}

ALWAYS_INLINE void direct_cols(enum weight_form form, const struct matmul *m, int64_t n,
                               int64_t end)
{
    // 4 rows as 2 + 2: a tile of one row costs almost as much as a larger one.
    int64_t num_tiles = ceil_div(m->rows, TILE_ROWS);
    for (; n < end; n += TILE_COLS) {
        for (int64_t tile = 0; tile < num_tiles; tile++) {
            int64_t row = tile * m->rows / num_tiles;
            int64_t rows = (tile + 1) * m->rows / num_tiles - row;
            if (rows == 1)
                direct_tile(1, form, m, row, n);
            else if (rows == 2)
                direct_tile(2, form, m, row, n);
            else
                direct_tile(3, form, m, row, n);
        }
    }
}

static void direct_f32(const struct matmul *m, int64_t n, int64_t end)
{
    direct_cols(WEIGHT_F32, m, n, end);
}

static void direct_f16(const struct matmul *m, int64_t n, int64_t end)
{
    direct_cols(WEIGHT_F16, m, n, end);
}

static void direct_bf16(const struct matmul *m, int64_t n, int64_t end)
{
    direct_cols(WEIGHT_BF16, m, n, end);
}

/** Per form: weight columns [n, end) for all rows. Any form also unpacks, e4m3 always does: its
 *  scales would have to be followed along k here. */
static void (*const direct_kernels[])(const struct matmul *m, int64_t n, int64_t end) = {
    [WEIGHT_F32] = direct_f32,
    [WEIGHT_F16] = direct_f16,
    [WEIGHT_BF16] = direct_bf16,
};

/** One tile over one panel: takes its sums up where the last panel left them. */
ALWAYS_INLINE void panel_tile(int rows, struct panel_scratch *s, const struct matmul *m,
                              int64_t row, int64_t block_row, int64_t n, int col, int64_t k)
{
    __m256 acc[TILE_ROWS][TILE_COLS];
    float(*sums)[TILE_COLS][LANES] = s->sums[block_row / TILE_ROWS][col / TILE_COLS];
    if (k == 0) {
        zero_tile(rows, acc);
    } else {
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int c = 0; c < TILE_COLS; c++)
                acc[r][c] = _mm256_loadu_ps(sums[r][c]);
        }
    }
    const char *w[TILE_COLS];
    for (int c = 0; c < TILE_COLS; c++)
        w[c] = (const char *)s->weights[col + c];
    const float *x = m->x + row * m->k + k;
    int64_t num_k = min_i64(PANEL_K, m->k - k), whole = num_k / LANES * LANES;
    dot_tile(rows, WEIGHT_F32, acc, x, m->k, w, whole, 0);
    if (whole < num_k) {
        __m256i mask = lane_mask(num_k - whole);
#pragma GCC unroll 4
        for (int c = 0; c < TILE_COLS; c++) {
            __m256 w8 = _mm256_loadu_ps(&s->weights[col + c][whole]); // padded with zeros
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++)
                acc[r][c] =
                    _mm256_fmadd_ps(_mm256_maskload_ps(x + r * m->k + whole, mask), w8, acc[r][c]);
        }
    }
    if (k + num_k == m->k) {
        finish_tile(rows, acc, m, row, n + col);
        return;
    }
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < TILE_COLS; c++)
            _mm256_storeu_ps(sums[r][c], acc[r][c]);
    }
}

/** Elements [k, k + num_k) of a row of e4m3, k at the start of a block. */
static void unpack_scaled(const struct matmul *m, float *out, int64_t row, int64_t k, int64_t num_k)
{
    const uint8_t *from = (const uint8_t *)m->w + row * m->w_row_bytes + k;
    int64_t run = m->scales->block_pitch > 0 ? WEIGHT_BLOCK : num_k;
    for (int64_t i = 0; i < num_k; i += run)
        avx2_unpack_f8(out + i, from + i, weight_scale(m->scales, row, k + i),
                       min_i64(run, num_k - i));
}

static void fill_panel(enum weight_form form, struct panel_scratch *s, const struct matmul *m,
                       int64_t n, int cols, int64_t k, int64_t num_k)
{
    for (int c = 0; c < cols; c++) {
        int64_t row = min_i64(n + c, m->n - 1);
        if (form == WEIGHT_F8_E4M3)
            unpack_scaled(m, s->weights[c], row, k, num_k);
        else
            avx2_unpack(form, s->weights[c],
                        m->w + row * m->w_row_bytes + k * weight_form_bytes(form), num_k);
        for (int64_t i = num_k; i < round_up_lanes(num_k); i++)
            s->weights[c][i] = 0.0f;
    }
}

/** Up to BLOCK_ROWS rows times up to PANEL_COLS weights. */
static void panel_block(enum weight_form form, struct panel_scratch *s, const struct matmul *m,
                        int64_t row, int64_t row_end, int64_t n)
{
    int cols = m->n - n > TILE_COLS ? PANEL_COLS : TILE_COLS;
    for (int64_t k = 0; k < m->k; k += PANEL_K) {
        fill_panel(form, s, m, n, cols, k, min_i64(PANEL_K, m->k - k));
        for (int64_t i = row; i < row_end; i += TILE_ROWS) {
            for (int col = 0; col < cols; col += TILE_COLS) {
                if (row_end - i >= 3)
                    panel_tile(3, s, m, i, i - row, n, col, k);
                else if (row_end - i == 2)
                    panel_tile(2, s, m, i, i - row, n, col, k);
                else
                    panel_tile(1, s, m, i, i - row, n, col, k);
            }
        }
    }
}

static void matmul_direct(const struct matmul *m, enum weight_form form, int threads)
{
    int64_t job_cols = max_i64(1, JOB_BYTES / (m->w_row_bytes * TILE_COLS)) * TILE_COLS;
    // Small matrices: still a few jobs for each thread.
    int64_t share = ceil_div(m->n, 4 * (int64_t)threads * TILE_COLS) * TILE_COLS;
    job_cols = min_i64(job_cols, share);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < m->n; n += job_cols)
        direct_kernels[form](m, n, min_i64(n + job_cols, m->n));
}

static void matmul_panels(struct device *dev, const struct matmul *m, enum weight_form form,
                          int threads)
{
    struct arena_mark mark = arena_mark(&dev->scratch);
    struct panel_scratch *scratch = arena_array(&dev->scratch, struct panel_scratch, threads);
    int64_t row_blocks = ceil_div(m->rows, BLOCK_ROWS), col_blocks = ceil_div(m->n, PANEL_COLS);
    // A job keeps its rows in the cache while several panels pass by.
    int64_t job_panels = max_i64(1, min_i64(8, col_blocks / (4 * (int64_t)threads)));
    int64_t jobs_per_block = ceil_div(col_blocks, job_panels);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t job = 0; job < row_blocks * jobs_per_block; job++) {
        int64_t row = job / jobs_per_block * BLOCK_ROWS;
        int64_t row_end = min_i64(row + BLOCK_ROWS, m->rows);
        int64_t col = job % jobs_per_block * job_panels;
        int64_t col_end = min_i64(col + job_panels, col_blocks);
        for (; col < col_end; col++)
            panel_block(form, &scratch[omp_get_thread_num()], m, row, row_end, col * PANEL_COLS);
    }
    cpu_scratch_end(&dev->scratch, mark);
}

void avx2_matmul(struct device *dev, struct tensor out, struct tensor x, const struct weight *w)
{
    struct matmul m = {
        .x = x.data,
        .out = out.data,
        .w = w->data,
        .bias = w->bias,
        .rows = x.shape[0],
        .k = w->in_features,
        .n = w->out_features,
        .out_stride = out.row_stride,
        .w_row_bytes = w->in_features * weight_form_bytes(w->form),
        .scales = &w->scales,
    };
    // Rows follow each other in memory: the tile after this one lies a tile's bytes ahead.
    int64_t tile_bytes = TILE_COLS * m.w_row_bytes;
    m.prefetch_bytes = tile_bytes <= MAX_PREFETCH_BYTES ? tile_bytes : PREFETCH_BYTES;
    int threads = cpu_threads_for(dev, m.rows * m.n * m.k);
    if (m.rows <= DIRECT_MAX_ROWS && w->form != WEIGHT_F8_E4M3)
        matmul_direct(&m, w->form, threads);
    else
        matmul_panels(dev, &m, w->form, threads);
}
#else
typedef int avx2_matmul_is_for_x86_only; // a translation unit must not be empty
#endif
