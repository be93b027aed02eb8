// Hidden states of a prompt → one vector: see pooler.h. The sums are small beside a forward pass,
// so the host takes them on every device.
#include "worker/pooler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/** Hidden states that one step can be asked for. */
static int32_t max_needed_rows(const struct pooler_options *options)
{
    return options->type == POOLING_MEAN ? options->max_num_batched_tokens : options->max_num_seqs;
}

static size_t hidden_bytes(const struct pooler_options *options)
{
    return (size_t)options->hidden_size * dtype_size(options->dev->activation_dtype);
}

size_t pooler_staging_bytes(const struct pooler_options *options)
{
    if (options->type == POOLING_NONE)
        return 0;
    return (size_t)max_needed_rows(options) * hidden_bytes(options);
}

static size_t num_elements(const struct pooler_options *options)
{
    return (size_t)options->max_num_seqs * (size_t)options->hidden_size;
}

size_t pooler_bytes(const struct pooler_options *options)
{
    if (options->type == POOLING_NONE)
        return 0;
    size_t bytes = num_elements(options) * sizeof(float);
    if (options->type == POOLING_MEAN)
        bytes += num_elements(options) * sizeof(double) +
                 (size_t)options->max_num_seqs * sizeof(int32_t);
    return bytes;
}

enum status pooler_init(struct pooler *pooler, const struct pooler_options *options,
                        struct error *err)
{
    *pooler = (struct pooler){.options = *options};
    if (options->type == POOLING_NONE)
        return STATUS_OK;
    pooler->vectors = xcalloc(num_elements(options), sizeof(*pooler->vectors));
    if (options->type == POOLING_MEAN) {
        pooler->sums = xcalloc(num_elements(options), sizeof(*pooler->sums));
        pooler->num_summed = xcalloc((size_t)options->max_num_seqs, sizeof(*pooler->num_summed));
    }
    pooler->staging = options->dev->ops.alloc_staging(options->dev, pooler_staging_bytes(options));
    if (pooler->staging)
        return STATUS_OK;
    pooler_deinit(pooler);
    return error_set(err, STATUS_OUT_OF_MEMORY, "%zu bytes for hidden states were refused",
                     pooler_staging_bytes(options));
}

void pooler_deinit(struct pooler *pooler)
{
    if (pooler->staging)
        pooler->options.dev->ops.free_staging(pooler->options.dev, pooler->staging);
    free(pooler->vectors);
    free(pooler->sums);
    free(pooler->num_summed);
    *pooler = (struct pooler){0};
}

/** Which of a sequence's hidden states in this step are needed. */
struct needed_rows {
    int32_t first, count;
};

static struct needed_rows needed_of(const struct pooler *pooler,
                                    const struct scheduled_row *scheduled)
{
    int32_t count = scheduled->num_scheduled_tokens;
    if (pooler->options.type == POOLING_MEAN)
        return (struct needed_rows){0, count};
    return (struct needed_rows){count - 1, scheduled->samples ? 1 : 0};
}

void pooler_take(struct pooler *pooler, struct tensor hidden, const struct input_batch *batch,
                 const struct scheduler_output *step)
{
    if (pooler->options.type == POOLING_NONE)
        return;
    struct device *dev = pooler->options.dev;
    const size_t row_bytes = hidden_bytes(&pooler->options);
    char *to = pooler->staging;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        struct needed_rows needed = needed_of(pooler, &step->rows[seq]);
        if (needed.count == 0)
            continue;
        size_t first = (size_t)batch->host.query_start[seq] + (size_t)needed.first;
        dev->ops.download(dev, to, (const char *)hidden.data + first * row_bytes,
                          (size_t)needed.count * row_bytes);
        to += (size_t)needed.count * row_bytes;
    }
}

static float element(const void *row, enum dtype dtype, int32_t i)
{
    if (dtype == DTYPE_F32)
        return ((const float *)row)[i];
    uint16_t bits = ((const uint16_t *)row)[i];
    return dtype == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

/** Adds rows one after the other: the same sum however they come in pieces. */
static void add_rows(const struct pooler *pooler, double *sums, const char *rows, int32_t count)
{
    const enum dtype dtype = pooler->options.dev->activation_dtype;
    const size_t row_bytes = hidden_bytes(&pooler->options);
    for (int32_t t = 0; t < count; t++) {
        const char *row = rows + (size_t)t * row_bytes;
        for (int32_t i = 0; i < pooler->options.hidden_size; i++)
            sums[i] += (double)element(row, dtype, i);
    }
}

/** Cuts and scales the vector; returns how long it is, 0 if it is not finite. */
static int32_t finish_vector(float *vector, int32_t hidden_size,
                             const struct pooling_params *params)
{
    CHECK(params->dimensions >= 0 && params->dimensions <= hidden_size);
    const double least_norm = 1e-12; // a vector of zeros stays one
    int32_t len = params->dimensions > 0 ? params->dimensions : hidden_size;
    double squares = 0;
    for (int32_t i = 0; i < len; i++)
        squares += (double)vector[i] * (double)vector[i];
    if (!isfinite(squares))
        return 0;
    double norm = fmax(sqrt(squares), least_norm);
    for (int32_t i = 0; i < len && params->use_activation; i++)
        vector[i] = (float)(vector[i] / norm);
    return len;
}

/** The sums of a row once this step's tokens are in: none may be missing or come twice. */
static const double *sum_up(struct pooler *pooler, const struct scheduled_row *scheduled,
                            const char *rows)
{
    const size_t hidden_size = (size_t)pooler->options.hidden_size;
    double *sums = pooler->sums + (size_t)scheduled->row * hidden_size;
    int32_t *num_summed = &pooler->num_summed[scheduled->row];
    if (scheduled->num_computed_tokens == 0) {
        memset(sums, 0, hidden_size * sizeof(*sums));
        *num_summed = 0;
    }
    CHECK(*num_summed == scheduled->num_computed_tokens);
    add_rows(pooler, sums, rows, scheduled->num_scheduled_tokens);
    *num_summed += scheduled->num_scheduled_tokens;
    return sums;
}

static void pool_row(struct pooler *pooler, const struct batch_row *row,
                     const struct scheduled_row *scheduled, const char *rows, float *vector,
                     struct row_output *output)
{
    const enum dtype dtype = pooler->options.dev->activation_dtype;
    const int32_t hidden_size = pooler->options.hidden_size;
    CHECK(row->pooling.type == pooler->options.type);
    const double *sums = pooler->sums ? sum_up(pooler, scheduled, rows) : NULL;
    if (!scheduled->samples)
        return;
    for (int32_t i = 0; i < hidden_size; i++)
        vector[i] = sums ? (float)(sums[i] / row->num_tokens) : element(rows, dtype, i);
    output->num_pooled = finish_vector(vector, hidden_size, &row->pooling);
    output->pooled = output->num_pooled > 0 ? vector : NULL;
}

void pooler_finish(struct pooler *pooler, const struct input_batch *batch,
                   const struct scheduler_output *step, struct row_output *outputs)
{
    if (pooler->options.type == POOLING_NONE)
        return;
    const size_t row_bytes = hidden_bytes(&pooler->options);
    const char *rows = pooler->staging;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        const struct scheduled_row *scheduled = &step->rows[seq];
        float *vector = pooler->vectors + (size_t)seq * (size_t)pooler->options.hidden_size;
        pool_row(pooler, &batch->rows[scheduled->row], scheduled, rows, vector, &outputs[seq]);
        rows += (size_t)needed_of(pooler, scheduled).count * row_bytes;
    }
}
