// Vectors of the fixture models, from the hidden states that another implementation computed.
#pragma once

#include <math.h>

#include "model_loader/safetensors.h"
#include "worker/golden.h"
#include "worker/step_driver.h"

/** The options of a pooling server. */
static inline struct serve_options pooling_options(const char *dir, enum pooling_type type)
{
    struct serve_options options = driver_options(dir);
    options.runner = RUNNER_POOLING;
    options.pooler_config =
        type == POOLING_MEAN ? "{\"pooling_type\":\"MEAN\"}" : "{\"pooling_type\":\"LAST\"}";
    options.max_model_len = 256;
    options.allow_long_max_model_len = true;
    return options;
}

static inline struct run pooling_run(enum pooling_type type, const int32_t *prompt,
                                     int32_t num_prompt)
{
    return (struct run){.prompt = prompt,
                        .num_prompt = num_prompt,
                        .sampling = driver_greedy(),
                        .pooling = {type, true, 0}};
}

/** What another implementation computed for a fixture's prompt of 17 tokens. */
struct golden {
    struct safetensors file;
    float *hidden; // [num_tokens, hidden_size] behind the last norm
    int32_t num_tokens, hidden_size;
    double largest; // magnitude
};

/** End with golden_close(). */
static inline void golden_open(struct golden *golden, const char *dir)
{
    char path[600];
    struct error err = {0};
    snprintf(path, sizeof(path), "%s/intermediates.safetensors", dir);
    if (safetensors_open(&golden->file, path, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    const struct safetensor *entry = safetensors_find(&golden->file, STR("final_norm"));
    assert_non_null(entry);
    assert_int_equal(entry->dtype, DTYPE_F32);
    golden->num_tokens = (int32_t)entry->shape[entry->ndim - 2];
    golden->hidden_size = (int32_t)entry->shape[entry->ndim - 1];
    golden->hidden = xmalloc(entry->size_bytes);
    memcpy(golden->hidden, entry->data, entry->size_bytes); // it may lie unaligned
    for (int32_t i = 0; i < golden->num_tokens * golden->hidden_size; i++)
        golden->largest = fmax(golden->largest, fabs((double)golden->hidden[i]));
}

/** The vector by its definition, in float64. */
static inline void golden_vector(const struct golden *golden, const struct pooling_params *pooling,
                                 double *vector)
{
    int32_t len = pooling->dimensions > 0 ? pooling->dimensions : golden->hidden_size;
    double squares = 0;
    for (int32_t i = 0; i < len; i++) {
        int32_t first = pooling->type == POOLING_MEAN ? 0 : golden->num_tokens - 1;
        vector[i] = 0;
        for (int32_t t = first; t < golden->num_tokens; t++)
            vector[i] += (double)golden->hidden[t * golden->hidden_size + i];
        vector[i] /= golden->num_tokens - first;
        squares += vector[i] * vector[i];
    }
    for (int32_t i = 0; i < len && pooling->use_activation; i++)
        vector[i] /= sqrt(squares);
}

static inline void golden_close(struct golden *golden)
{
    safetensors_close(&golden->file);
    free(golden->hidden);
}
