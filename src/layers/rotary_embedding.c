// Rotary position embedding: see rotary_embedding.h. Frequencies and angles are computed in double
// precision and rounded once.
#include "layers/rotary_embedding.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

enum { MAX_ROT_DIM = 1024 };

int32_t rotary_dim(const struct rotary_embedding_options *options)
{
    return (int32_t)(options->head_dim * options->rope->partial_rotary_factor);
}

/** The context length of the original training, before any stretching. */
static double original_positions(const struct rotary_embedding_options *options)
{
    int32_t original = options->rope->original_max_position_embeddings;
    if (original <= 0)
        original = options->max_position_embeddings;
    return original > 0 ? original : options->max_positions;
}

static void scale_llama3(double *inv_freq, int32_t count,
                         const struct rotary_embedding_options *options)
{
    const struct rope_config *rope = options->rope;
    double original = original_positions(options);
    for (int32_t i = 0; i < count; i++) {
        double wave_length = 2 * M_PI / inv_freq[i];
        if (wave_length < original / rope->high_freq_factor)
            continue; // fast enough to have turned often: kept
        if (wave_length > original / rope->low_freq_factor) {
            inv_freq[i] /= rope->factor;
            continue;
        }
        double smooth = (original / wave_length - rope->low_freq_factor) /
                        (rope->high_freq_factor - rope->low_freq_factor);
        inv_freq[i] = (1 - smooth) * inv_freq[i] / rope->factor + smooth * inv_freq[i];
    }
}

/** YaRN (Peng et al. 2023, arXiv:2309.00071): the dimension that turns `rotations` times within the
 *  original context. */
static double yarn_dimension(double rotations, int32_t rot_dim, double theta, double original)
{
    return rot_dim * log(original / (rotations * 2 * M_PI)) / (2 * log(theta));
}

static double yarn_magnitude(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

static void scale_yarn(double *inv_freq, double *magnitude, int32_t rot_dim,
                       const struct rotary_embedding_options *options)
{
    const struct rope_config *rope = options->rope;
    double original = original_positions(options);
    double low = yarn_dimension(rope->beta_fast, rot_dim, rope->theta, original);
    double high = yarn_dimension(rope->beta_slow, rot_dim, rope->theta, original);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, rot_dim - 1);
    if (low == high)
        high += 0.001;
    for (int32_t i = 0; i < rot_dim / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        inv_freq[i] = inv_freq[i] / rope->factor * ramp + inv_freq[i] * (1 - ramp);
    }
    if (rope->attention_factor >= 0)
        *magnitude = rope->attention_factor;
    else if (rope->mscale != 0 && rope->mscale_all_dim != 0)
        *magnitude = yarn_magnitude(rope->factor, rope->mscale) /
                     yarn_magnitude(rope->factor, rope->mscale_all_dim);
    else
        *magnitude = yarn_magnitude(rope->factor, 1);
}

static enum status scale_longrope(double *inv_freq, double *magnitude, int32_t count,
                                  const struct rotary_embedding_options *options, struct error *err)
{
    const struct rope_config *rope = options->rope;
    double original = original_positions(options);
    bool is_long = options->max_positions > original;
    const double *factors = is_long ? rope->long_factor : rope->short_factor;
    if (!factors || rope->num_factors != count)
        return error_set(err, STATUS_INVALID,
                         "rope_scaling: longrope has %d %s factors, expected %d (half the rotated "
                         "dimensions of a head)",
                         factors ? rope->num_factors : 0, is_long ? "long" : "short", count);
    for (int32_t i = 0; i < count; i++) {
        if (!(factors[i] > 0))
            return error_set(err, STATUS_INVALID, "rope_scaling: longrope factor %d is %g", i,
                             factors[i]);
        inv_freq[i] /= factors[i];
    }
    double stretch = options->max_position_embeddings > 0
                         ? options->max_position_embeddings / original
                         : rope->factor;
    if (rope->attention_factor >= 0)
        *magnitude = rope->attention_factor;
    else if (stretch > 1)
        *magnitude = sqrt(1 + log(stretch) / log(original));
    return STATUS_OK;
}

/** The base of dynamic NTK scaling, fixed for the longest context it is made for. */
static double dynamic_theta(int32_t rot_dim, const struct rotary_embedding_options *options)
{
    const struct rope_config *rope = options->rope;
    double original = original_positions(options);
    double longest = original * rope->factor;
    double growth = rope->factor * longest / original - (rope->factor - 1);
    return rope->theta * pow(growth, rot_dim / (rot_dim - 2.0));
}

static enum status check_options(const struct rotary_embedding_options *options, struct error *err)
{
    const struct rope_config *rope = options->rope;
    int32_t rot_dim = rotary_dim(options);
    bool is_dynamic = rope->type == ROPE_DYNAMIC;
    if (rot_dim < 2 || rot_dim > MAX_ROT_DIM || rot_dim % 2 != 0 || rot_dim > options->head_dim ||
        (is_dynamic && rot_dim < 4))
        return error_set(err, STATUS_INVALID,
                         "rotary embedding over %d of %d dimensions of a head: expected an even "
                         "number from %d",
                         rot_dim, options->head_dim, is_dynamic ? 4 : 2);
    if (!(rope->theta > 1))
        return error_set(err, STATUS_INVALID, "rope_theta is %g: expected more than 1",
                         rope->theta);
    if (rope->type != ROPE_DEFAULT && rope->type != ROPE_LONGROPE && !(rope->factor >= 1))
        return error_set(err, STATUS_INVALID, "rope_scaling: factor is %g: expected at least 1",
                         rope->factor);
    if (rope->type == ROPE_LLAMA3 &&
        !(rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor))
        return error_set(err, STATUS_INVALID,
                         "rope_scaling: low_freq_factor %g and high_freq_factor %g: expected "
                         "0 < low < high",
                         rope->low_freq_factor, rope->high_freq_factor);
    if (rope->type == ROPE_YARN && !(rope->beta_slow > 0 && rope->beta_fast >= rope->beta_slow))
        return error_set(err, STATUS_INVALID,
                         "rope_scaling: beta_slow %g and beta_fast %g: expected 0 < slow <= fast",
                         rope->beta_slow, rope->beta_fast);
    return STATUS_OK;
}

enum status rotary_frequencies(double *inv_freq, double *magnitude,
                               const struct rotary_embedding_options *options, struct error *err)
{
    TRY(check_options(options, err));
    const struct rope_config *rope = options->rope;
    int32_t rot_dim = rotary_dim(options);
    double theta = rope->type == ROPE_DYNAMIC ? dynamic_theta(rot_dim, options) : rope->theta;
    *magnitude = 1;
    for (int32_t i = 0; i < rot_dim / 2; i++)
        inv_freq[i] = pow(theta, -2.0 * i / rot_dim);
    switch (rope->type) {
    case ROPE_DEFAULT:
    case ROPE_DYNAMIC:
        break;
    case ROPE_LINEAR:
        for (int32_t i = 0; i < rot_dim / 2; i++)
            inv_freq[i] /= rope->factor;
        break;
    case ROPE_LLAMA3:
        scale_llama3(inv_freq, rot_dim / 2, options);
        break;
    case ROPE_YARN:
        scale_yarn(inv_freq, magnitude, rot_dim, options);
        break;
    case ROPE_LONGROPE:
        return scale_longrope(inv_freq, magnitude, rot_dim / 2, options, err);
    }
    return STATUS_OK;
}

/** Positions whose angles are sums of a block's first angle and one of a few offsets, so that sines
 *  and cosines follow from the addition theorems: exact to some 1e-16, and far cheaper. */
enum { BLOCK_POSITIONS = 64 };

struct angle {
    double cosine, sine;
};

static struct angle angle_of(int32_t position, double inv_freq)
{
    double angle = position * inv_freq;
    return (struct angle){cos(angle), sin(angle)};
}

static void fill_block(float *table, int32_t first, int32_t count, int32_t half,
                       const double *inv_freq, double magnitude, const struct angle *offsets)
{
    for (int32_t i = 0; i < half; i++) {
        struct angle start = angle_of(first, inv_freq[i]);
        start.cosine *= magnitude;
        start.sine *= magnitude;
        for (int32_t p = 0; p < count; p++) {
            struct angle offset = offsets[p * half + i];
            float *row = table + (int64_t)(first + p) * 2 * half;
            row[i] = (float)(start.cosine * offset.cosine - start.sine * offset.sine);
            row[half + i] = (float)(start.sine * offset.cosine + start.cosine * offset.sine);
        }
    }
}

static void fill_table(float *table, int32_t max_positions, int32_t rot_dim, const double *inv_freq,
                       double magnitude)
{
    int32_t half = rot_dim / 2;
    struct angle *offsets = xmalloc((size_t)BLOCK_POSITIONS * (size_t)half * sizeof(*offsets));
    for (int32_t p = 0; p < BLOCK_POSITIONS; p++) {
        for (int32_t i = 0; i < half; i++)
            // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): `half` of them were set
            offsets[p * half + i] = angle_of(p, inv_freq[i]);
    }
#pragma omp parallel for if (max_positions > 64 * BLOCK_POSITIONS)
    for (int32_t first = 0; first < max_positions; first += BLOCK_POSITIONS)
        fill_block(table, first, min_i32(BLOCK_POSITIONS, max_positions - first), half, inv_freq,
                   magnitude, offsets);
    free(offsets);
}

enum status rotary_embedding_init(struct rotary_embedding *rotary, const struct weights *w,
                                  const struct rotary_embedding_options *options, struct error *err)
{
    double inv_freq[MAX_ROT_DIM / 2], magnitude;
    TRY(rotary_frequencies(inv_freq, &magnitude, options, err));
    *rotary = (struct rotary_embedding){rotary_dim(options), options->max_positions, NULL};
    size_t count = (size_t)rotary->max_positions * (size_t)rotary->rot_dim;
    void *table;
    TRY(weights_reserve(w, count * sizeof(float), &table, err));
    if (!table)
        return STATUS_OK;
    float *host = xmalloc(count * sizeof(float));
    fill_table(host, rotary->max_positions, rotary->rot_dim, inv_freq, magnitude);
    struct device *dev = w->store->dev;
    dev->ops.copy_in(dev, table, host, count * sizeof(float));
    free(host);
    rotary->cos_sin = table;
    return STATUS_OK;
}
