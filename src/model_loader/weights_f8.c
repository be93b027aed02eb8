// Matrices of e4m3: a checkpoint's elements and the scales beside them, or values that are
// quantised as they are read. Where several matrices become one, each keeps its own scales.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model_loader/convert.h"
#include "model_loader/weights_source.h"

static const float MAX_E4M3 = 448.0f;
static const float DUMMY_INPUT_SCALE = 1.0f / 16;

/** One matrix on its way. */
struct f8_load {
    const struct weights *w;
    const struct weights_part *parts;
    size_t num_parts;
    const struct quant_scheme *scheme;
    int64_t out_features, in_features;
    int64_t pitch; // scales of a row of blocks; 0: each row has one
};

static int64_t block_rows(int64_t rows)
{
    return ceil_div(rows, WEIGHT_BLOCK);
}

/** The scales of `rows` rows that begin a part. */
static int64_t count_scales(const struct f8_load *load, int64_t rows)
{
    return load->pitch > 0 ? block_rows(rows) * load->pitch : rows;
}

// ---- Scales of a checkpoint ----------------------------------------------------------------

static enum status wrong_scales(const struct safetensor *tensor, const char *expected,
                                struct error *err)
{
    struct arena arena = {0};
    enum status status = error_set(err, STATUS_INVALID, STR_FORMAT ": found %s, expected %s (%s)",
                                   STR_ARG(tensor->name), safetensor_describe(tensor, &arena),
                                   expected, tensor->file);
    arena_deinit(&arena);
    return status;
}

/** Whether a tensor has the shape [rows, cols], where a last dimension of one may be left out. */
static bool has_shape(const struct safetensor *tensor, int64_t rows, int64_t cols)
{
    if (tensor->ndim == 0)
        return rows == 1 && cols == 1;
    if (tensor->ndim == 1)
        return tensor->shape[0] == rows && cols == 1;
    return tensor->ndim == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols;
}

static enum status check_scales(const struct f8_load *load, const struct safetensor *tensor,
                                int64_t rows, int64_t cols, struct error *err)
{
    bool is_block = load->scheme->strategy == QUANT_BLOCK;
    bool is_known = tensor->dtype == DTYPE_F32 || tensor->dtype == DTYPE_F16 ||
                    tensor->dtype == DTYPE_BF16 || (is_block && tensor->dtype == DTYPE_F8_E8M0);
    if (is_known && has_shape(tensor, rows, cols))
        return STATUS_OK;
    char expected[128];
    if (load->scheme->strategy == QUANT_TENSOR)
        snprintf(expected, sizeof(expected), "one number of F32, F16 or BF16");
    else
        snprintf(expected, sizeof(expected), "%s [%" PRId64 ", %" PRId64 "]",
                 is_block ? "F32, F16, BF16 or F8_E8M0" : "F32, F16 or BF16", rows, cols);
    return wrong_scales(tensor, expected, err);
}

static enum status read_scales(float *out, const struct safetensor *tensor, int64_t count,
                               struct error *err)
{
    if (tensor->dtype == DTYPE_F8_E8M0) {
        for (int64_t i = 0; i < count; i++) {
            int exponent = ((const uint8_t *)tensor->data)[i];
            out[i] = exponent == 0xFF ? NAN : ldexpf(1.0f, exponent - 127);
        }
    } else {
        bool fits = convert_values(out, DTYPE_F32, tensor->data, tensor->dtype, (size_t)count);
        CHECK(fits); // float32 holds them all
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(out[i] >= 0) || isinf(out[i]))
            return error_set(err, STATUS_INVALID,
                             STR_FORMAT ": number %" PRId64
                                        " is %g: expected finite ones that are not negative (%s)",
                             STR_ARG(tensor->name), i, (double)out[i], tensor->file);
    }
    return STATUS_OK;
}

/** The checkpoint's scales of one part; `out` NULL: they are only checked. */
static enum status load_part_scales(const struct f8_load *load, const struct weights_part *part,
                                    float *out, struct error *err)
{
    const struct weights *w = load->w;
    const char *scale_name = load->scheme->scale_name;
    char suffix[64];
    snprintf(suffix, sizeof(suffix), ".%s", scale_name);
    struct full_name name = weights_full_name(w, part->module, suffix);
    const struct safetensor *tensor = weights_find_tensor(w, name);
    if (!tensor)
        return error_set(err, STATUS_NOT_FOUND,
                         "%s: the checkpoint in %s lacks this tensor, the scales of %s.weight",
                         name.text, w->store->checkpoint.dir, part->module);
    bool is_tensor = load->scheme->strategy == QUANT_TENSOR;
    int64_t rows = load->pitch > 0 ? block_rows(part->out_features) : part->out_features;
    int64_t cols = load->pitch > 0 ? load->pitch : 1;
    if (is_tensor)
        rows = 1;
    TRY(check_scales(load, tensor, rows, cols, err));
    if (!out)
        return STATUS_OK;
    TRY(read_scales(out, tensor, rows * cols, err));
    for (int64_t i = 1; is_tensor && i < part->out_features; i++)
        out[i] = out[0];
    return STATUS_OK;
}

/** The scale of static activations: the largest of the parts', which have one input. */
static enum status load_input_scale(const struct f8_load *load, float *out, struct error *err)
{
    for (size_t i = 0; i < load->num_parts; i++) {
        struct full_name name = weights_full_name(load->w, load->parts[i].module, ".input_scale");
        float scale = 0;
        if (!weights_has(load->w, name.text + strlen(load->w->prefix)))
            return error_set(err, STATUS_NOT_FOUND,
                             "%s: the checkpoint in %s lacks this tensor, the scale of static "
                             "activations",
                             name.text, load->w->store->checkpoint.dir);
        TRY(weights_scalar(load->w, name.text + strlen(load->w->prefix), &scale, err));
        *out = fmaxf(*out, scale);
    }
    if (load->w->store->options.is_dummy)
        *out = DUMMY_INPUT_SCALE;
    return STATUS_OK;
}

/** Blocks of a part that is not the last must end where it does. */
static enum status check_blocks(const struct f8_load *load, struct error *err)
{
    for (size_t i = 0; load->pitch > 0 && i + 1 < load->num_parts; i++) {
        if (load->parts[i].out_features % WEIGHT_BLOCK != 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s has %" PRId64 " rows: with scales of %d x %d blocks, layers that "
                             "are multiplied together need a multiple of %d",
                             weights_full_name(load->w, load->parts[i].module, ".weight").text,
                             load->parts[i].out_features, WEIGHT_BLOCK, WEIGHT_BLOCK, WEIGHT_BLOCK);
    }
    return STATUS_OK;
}

/** Room for all scales, which is counted here unless the backend keeps its own copy; NULL in PLAN
 *  mode. */
static float *reserve_scales(const struct f8_load *load)
{
    struct weight_store *store = load->w->store;
    int64_t count = count_scales(load, load->out_features);
    enum weight_kind kind =
        weights_kind_of(weights_full_name(load->w, load->parts[0].module, ".weight").text);
    if (store->dev->has_host_memory)
        weights_count_bytes(store, kind, count * (int64_t)sizeof(float), 0);
    return store->options.mode == WEIGHTS_PLAN ? NULL : arena_array(&store->arena, float, count);
}

static enum status load_stored(const struct f8_load *load, float *scales, struct weight *out,
                               struct error *err)
{
    const struct weights *w = load->w;
    struct source sources[MAX_PARTS];
    bool is_dummy = w->store->options.is_dummy;
    for (int64_t i = 0; is_dummy && scales && i < count_scales(load, load->out_features); i++)
        scales[i] = DUMMY_F8_SCALE;
    for (size_t i = 0; i < load->num_parts; i++) {
        const struct weights_part *part = &load->parts[i];
        TRY(weights_find_f8(w, weights_full_name(w, part->module, ".weight"), part->out_features,
                            load->in_features, &sources[i], err));
        if (!is_dummy)
            TRY(load_part_scales(load, part, scales, err));
        if (scales)
            scales += count_scales(load, part->out_features);
    }
    return weights_place(w, sources, load->num_parts, DTYPE_F8_E4M3, out, err);
}

// ---- Quantisation as values are read -------------------------------------------------------

/** One part's values, and where their codes and scales go. */
struct f8_part {
    const struct source *source;
    int64_t rows, cols, pitch;
    uint8_t *codes;
    float *scales; // until they are divided by the largest e4m3 number: largest magnitudes
};

static void read_row(const struct f8_part *part, int64_t row, float *out)
{
    size_t offset = (size_t)(row * part->cols) * dtype_size(part->source->dtype);
    bool fits = convert_values(out, DTYPE_F32, (const char *)part->source->tensor->data + offset,
                               part->source->dtype, (size_t)part->cols);
    CHECK(fits); // float32 holds them all
}

static void measure_row(const struct f8_part *part, int64_t row, const float *values)
{
    int64_t width = part->pitch > 0 ? WEIGHT_BLOCK : part->cols;
    float *largest = part->scales + (part->pitch > 0 ? row / WEIGHT_BLOCK * part->pitch : row);
    for (int64_t begin = 0; begin < part->cols; begin += width, largest++) {
        for (int64_t i = begin; i < min_i64(begin + width, part->cols); i++)
            *largest = fmaxf(*largest, fabsf(values[i]));
    }
}

static void quantize_row(const struct f8_part *part, int64_t row, const float *values)
{
    const struct weight_scales scales = {.values = part->scales,
                                         .block_pitch = (int32_t)part->pitch};
    uint8_t *codes = part->codes + row * part->cols;
    for (int64_t i = 0; i < part->cols; i++)
        codes[i] = f32_to_f8_e4m3(values[i] / weight_scale(&scales, row, i));
}

/** Calls `visit` for all rows; those of a block of rows by one thread. */
static void for_rows(const struct f8_part *part,
                     void (*visit)(const struct f8_part *part, int64_t row, const float *values))
{
    int64_t num_bands = block_rows(part->rows);
#pragma omp parallel if (num_bands > 1)
    {
        float *values = xmalloc((size_t)part->cols * sizeof(*values));
#pragma omp for schedule(dynamic)
        for (int64_t band = 0; band < num_bands; band++) {
            int64_t end = min_i64((band + 1) * WEIGHT_BLOCK, part->rows);
            for (int64_t row = band * WEIGHT_BLOCK; row < end; row++) {
                read_row(part, row, values);
                visit(part, row, values);
            }
        }
        free(values);
    }
}

static enum status quantize_part(const struct f8_load *load, const struct f8_part *part,
                                 struct error *err)
{
    int64_t count = count_scales(load, part->rows);
    float largest = 0;
    memset(part->scales, 0, (size_t)count * sizeof(float));
    for_rows(part, measure_row);
    for (int64_t i = 0; i < count; i++)
        largest = fmaxf(largest, part->scales[i]);
    if (isinf(largest))
        return error_set(err, STATUS_INVALID,
                         "%s: a value is infinite, which cannot be quantized (%s)",
                         part->source->name.text, part->source->tensor->file);
    for (int64_t i = 0; i < count; i++) {
        float magnitude = load->scheme->strategy == QUANT_TENSOR ? largest : part->scales[i];
        part->scales[i] = magnitude > 0 ? magnitude / MAX_E4M3 : 1;
    }
    for_rows(part, quantize_row);
    return STATUS_OK;
}

static enum status load_quantizing(const struct f8_load *load, float *scales, struct weight *out,
                                   struct error *err)
{
    const struct weights *w = load->w;
    struct source sources[MAX_PARTS];
    for (size_t i = 0; i < load->num_parts; i++)
        TRY(weights_find_source(w, weights_full_name(w, load->parts[i].module, ".weight"),
                                load->parts[i].out_features, load->in_features, &sources[i], err));
    int64_t size_bytes = load->out_features * load->in_features;
    enum weight_kind kind = weights_kind_of(sources[0].name.text);
    if (!scales)
        return weights_prepare(w->store, kind, out, NULL, size_bytes, err);
    void *copy = NULL;
    TRY(weights_host_alloc(&copy, (size_t)size_bytes, err));
    struct f8_part part = {
        .cols = load->in_features, .pitch = load->pitch, .codes = copy, .scales = scales};
    for (size_t i = 0; i < load->num_parts; i++) {
        part.source = &sources[i];
        part.rows = load->parts[i].out_features;
        enum status status = quantize_part(load, &part, err);
        if (status != STATUS_OK) {
            free(copy);
            return status;
        }
        part.codes += part.rows * part.cols;
        part.scales += count_scales(load, part.rows);
    }
    out->data = copy;
    return weights_prepare(w->store, kind, out, copy, size_bytes, err);
}

enum status weights_matrix_f8(const struct weights *w, const struct weights_part *parts,
                              size_t num_parts, int64_t in_features, bool has_bias,
                              const struct quant_scheme *scheme, struct weight *out,
                              struct error *err)
{
    struct f8_load load = {.w = w,
                           .parts = parts,
                           .num_parts = num_parts,
                           .scheme = scheme,
                           .in_features = in_features};
    if (scheme->strategy == QUANT_BLOCK)
        load.pitch = block_rows(in_features);
    for (size_t i = 0; i < num_parts; i++)
        load.out_features += parts[i].out_features;
    *out = (struct weight){
        .form = WEIGHT_F8_E4M3,
        .out_features = load.out_features,
        .in_features = in_features,
        .scales = {.block_pitch = (int32_t)load.pitch,
                   .quantizes_input = scheme->activations != QUANT_ACTIVATIONS_KEPT}};
    TRY(check_blocks(&load, err));
    if (scheme->activations == QUANT_ACTIVATIONS_STATIC)
        TRY(load_input_scale(&load, &out->scales.input_scale, err));
    if (has_bias)
        TRY(weights_load_bias(w, parts, num_parts, &out->bias, err));
    float *scales = reserve_scales(&load);
    out->scales.values = scales;
    // What is made up needs no quantisation.
    if (quantization_is_online(w->store->options.quantization) && !w->store->options.is_dummy)
        return load_quantizing(&load, scales, out, err);
    return load_stored(&load, scales, out, err);
}
