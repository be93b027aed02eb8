// Parameters by name and shape: see weights.h.
#include "model_loader/weights.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model_loader/convert.h"
#include "model_loader/weights_source.h"

struct weights weights_at(const struct weights *w, const char *format, ...)
{
    struct weights inner = {.store = w->store};
    char name[sizeof(inner.prefix)];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    CHECK(len >= 0 && strlen(w->prefix) + (size_t)len + 2 <= sizeof(inner.prefix));
    snprintf(inner.prefix, sizeof(inner.prefix), "%.*s%.*s.", (int)strlen(w->prefix), w->prefix,
             len, name);
    return inner;
}

struct full_name weights_full_name(const struct weights *w, const char *name, const char *suffix)
{
    struct full_name full;
    int len = snprintf(full.text, sizeof(full.text), "%s%s%s", w->prefix, name, suffix);
    CHECK(len > 0 && (size_t)len < sizeof(full.text));
    return full;
}

bool weights_has(const struct weights *w, const char *name)
{
    struct full_name full = weights_full_name(w, name, "");
    return w->store->options.is_dummy ||
           checkpoint_find(&w->store->checkpoint, str_from(full.text)) >= 0;
}

enum weight_kind weights_kind_of(const char *name)
{
    static const struct {
        const char *part;
        enum weight_kind kind;
    } KINDS[] = {
        {"experts", WEIGHT_KIND_EXPERTS},  {"norm", WEIGHT_KIND_NORMS},
        {"embed", WEIGHT_KIND_EMBEDDINGS}, {"lm_head", WEIGHT_KIND_HEAD},
        {"attn", WEIGHT_KIND_ATTENTION},   {"mlp", WEIGHT_KIND_MLP},
        {"moe", WEIGHT_KIND_MLP},          {"feed_forward", WEIGHT_KIND_MLP},
    };
    for (size_t i = 0; i < ARRAY_LEN(KINDS); i++) {
        if (strstr(name, KINDS[i].part))
            return KINDS[i].kind;
    }
    return WEIGHT_KIND_OTHER;
}

static bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

static enum status find_source(const struct weights *w, struct full_name name, int64_t rows,
                               int64_t cols, bool is_f8, struct source *out, struct error *err)
{
    struct weight_store *store = w->store;
    *out =
        (struct source){.name = name, .dtype = is_f8 ? DTYPE_F8_E4M3 : store->options.model_dtype};
    if (cols < 1 || rows == 0 ||
        !size_mul(&out->count, (size_t)(rows < 0 ? 1 : rows), (size_t)cols))
        return error_set(err, STATUS_INVALID, "%s: its size would be [%" PRId64 ", %" PRId64 "]",
                         name.text, rows, cols);
    if (store->options.is_dummy)
        return STATUS_OK;
    int64_t index = checkpoint_find(&store->checkpoint, str_from(name.text));
    if (index < 0)
        return error_set(err, STATUS_NOT_FOUND, "%s: the checkpoint in %s lacks this tensor",
                         name.text, store->checkpoint.dir);
    const struct safetensor *tensor = store->checkpoint.tensors[index];
    bool fits = rows < 0
                    ? tensor->ndim == 1 && tensor->shape[0] == cols
                    : tensor->ndim == 2 && tensor->shape[0] == rows && tensor->shape[1] == cols;
    bool is_known = is_f8 ? tensor->dtype == DTYPE_F8_E4M3 : is_float(tensor->dtype);
    if (!fits || !is_known) {
        struct arena arena = {0};
        char expected[64];
        if (rows < 0)
            snprintf(expected, sizeof(expected), "[%" PRId64 "]", cols);
        else
            snprintf(expected, sizeof(expected), "[%" PRId64 ", %" PRId64 "]", rows, cols);
        enum status status = error_set(
            err, fits ? STATUS_UNSUPPORTED : STATUS_INVALID, "%s: found %s, expected %s%s (%s)",
            name.text, safetensor_describe(tensor, &arena),
            fits ? is_f8 ? "F8_E4M3 " : "F32, F16 or BF16 " : "", expected, tensor->file);
        arena_deinit(&arena);
        return status;
    }
    store->is_used[index] = true;
    out->tensor = tensor;
    out->dtype = tensor->dtype;
    return STATUS_OK;
}

enum status weights_find_source(const struct weights *w, struct full_name name, int64_t rows,
                                int64_t cols, struct source *out, struct error *err)
{
    return find_source(w, name, rows, cols, false, out, err);
}

enum status weights_find_f8(const struct weights *w, struct full_name name, int64_t rows,
                            int64_t cols, struct source *out, struct error *err)
{
    return find_source(w, name, rows, cols, true, out, err);
}

const struct safetensor *weights_find_tensor(const struct weights *w, struct full_name name)
{
    struct weight_store *store = w->store;
    int64_t index =
        store->options.is_dummy ? -1 : checkpoint_find(&store->checkpoint, str_from(name.text));
    if (index < 0)
        return NULL;
    store->is_used[index] = true;
    return store->checkpoint.tensors[index];
}

enum dtype weights_kept_dtype(const struct weight_store *store, const struct source *source)
{
    return store->options.keeps_dtype ? source->dtype : store->options.model_dtype;
}

/** Writes a parameter's values as `dtype`. */
static enum status read_source(void *out, enum dtype dtype, const struct source *source,
                               struct error *err)
{
    if (!source->tensor) {
        dummy_values(out, dtype, source->count, str_from(source->name.text));
        return STATUS_OK;
    }
    if (dtype == DTYPE_F8_E4M3) {
        memcpy(out, source->tensor->data, source->count);
        return STATUS_OK;
    }
    if (!convert_values(out, dtype, source->tensor->data, source->dtype, source->count))
        return error_set(err, STATUS_INVALID, "%s: a value is too large for %s%s (%s)",
                         source->name.text, dtype_name(dtype),
                         dtype == DTYPE_F16 ? ": use --dtype bfloat16" : "", source->tensor->file);
    return STATUS_OK;
}

enum status weights_host_alloc(void **out, size_t size_bytes, struct error *err)
{
    size_t rounded;
    if (!size_add(&rounded, size_bytes, 63))
        rounded = 0;
    *out = rounded ? aligned_alloc(64, rounded & ~(size_t)63) : NULL;
    if (!*out)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%zu bytes for weights were refused",
                         size_bytes);
    return STATUS_OK;
}

/** Whether kernels can read a tensor where it is mapped. */
static bool is_readable_in_place(const struct source *source, enum dtype dtype)
{
    return source->tensor && source->dtype == dtype &&
           (uintptr_t)source->tensor->data % dtype_size(dtype) == 0;
}

static enum status read_vector(float *out, const struct weights *w, const struct source *source,
                               struct error *err)
{
    enum dtype dtype = weights_kept_dtype(w->store, source);
    if (dtype == DTYPE_F32)
        return read_source(out, DTYPE_F32, source, err);
    // Through the model's dtype, so that a chosen lower precision rounds vectors as well.
    void *rounded = xmalloc(source->count * dtype_size(dtype));
    enum status status = read_source(rounded, dtype, source, err);
    if (status == STATUS_OK) {
        bool fits = convert_values(out, DTYPE_F32, rounded, dtype, source->count);
        CHECK(fits); // float32 holds them all
    }
    free(rounded);
    return status;
}

enum status weights_vector(const struct weights *w, const char *name, int64_t n, const void **out,
                           struct error *err)
{
    struct weight_store *store = w->store;
    enum dtype dtype = store->dev->activation_dtype;
    struct source source;
    *out = NULL;
    TRY(weights_find_source(w, weights_full_name(w, name, ""), -1, n, &source, err));
    size_t size_bytes = (size_t)n * dtype_size(dtype);
    weights_count_bytes(store, weights_kind_of(source.name.text), (int64_t)size_bytes, 0);
    if (store->options.mode == WEIGHTS_PLAN)
        return STATUS_OK;
    void *values = arena_alloc(&store->arena, size_bytes);
    *out = values;
    if (dtype == DTYPE_F32)
        TRY(read_vector(values, w, &source, err));
    else
        TRY(read_source(values, dtype, &source, err));
    if (store->dev->has_host_memory)
        return STATUS_OK;
    void *on_device = NULL;
    TRY(weights_keep_on_device(store, values, size_bytes, &on_device, err));
    *out = on_device;
    return STATUS_OK;
}

enum status weights_scalar(const struct weights *w, const char *name, float *out, struct error *err)
{
    struct weight_store *store = w->store;
    struct full_name full = weights_full_name(w, name, "");
    *out = 0;
    const struct safetensor *tensor = weights_find_tensor(w, full);
    if (!tensor)
        return STATUS_OK;
    bool fits = tensor->ndim == 0 || (tensor->ndim == 1 && tensor->shape[0] == 1);
    if (!fits || !is_float(tensor->dtype)) {
        struct arena arena = {0};
        enum status status =
            error_set(err, fits ? STATUS_UNSUPPORTED : STATUS_INVALID,
                      "%s: found %s, expected one number of F32, F16 or BF16 (%s)", full.text,
                      safetensor_describe(tensor, &arena), tensor->file);
        arena_deinit(&arena);
        return status;
    }
    float value = 0;
    bool is_read = convert_values(&value, DTYPE_F32, tensor->data, tensor->dtype, 1);
    CHECK(is_read); // float32 holds them all
    if (!(value > 0) || isinf(value))
        return error_set(err, STATUS_INVALID, "%s is %g: expected a positive number (%s)",
                         full.text, (double)value, tensor->file);
    if (store->options.mode != WEIGHTS_PLAN)
        *out = value;
    return STATUS_OK;
}

enum weight_form weights_form_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F16:
        return WEIGHT_F16;
    case DTYPE_BF16:
        return WEIGHT_BF16;
    case DTYPE_F8_E4M3:
        return WEIGHT_F8_E4M3;
    default:
        assert(dtype == DTYPE_F32);
        return WEIGHT_F32;
    }
}

enum status weights_join_sources(const struct weights *w, const struct source *sources,
                                 size_t num_sources, enum dtype dtype, const void **out,
                                 void **copy, struct error *err)
{
    *out = *copy = NULL;
    bool in_place = true;
    size_t count = 0;
    for (size_t i = 0; i < num_sources; i++) {
        in_place = in_place && is_readable_in_place(&sources[i], dtype);
        if (in_place && i > 0)
            in_place =
                (const char *)sources[i - 1].tensor->data + sources[i - 1].tensor->size_bytes ==
                (const char *)sources[i].tensor->data;
        if (!size_add(&count, count, sources[i].count))
            return error_set(err, STATUS_TOO_LARGE, "%s: too large", sources[i].name.text);
    }
    *out = in_place ? sources[0].tensor->data : NULL;
    if (in_place || w->store->options.mode == WEIGHTS_PLAN)
        return STATUS_OK;
    size_t size_bytes;
    if (!size_mul(&size_bytes, count, dtype_size(dtype)))
        return error_set(err, STATUS_TOO_LARGE, "%s: too large", sources[0].name.text);
    TRY(weights_host_alloc(copy, size_bytes, err));
    char *end = *copy;
    for (size_t i = 0; i < num_sources; i++) {
        TRY(read_source(end, dtype, &sources[i], err));
        end += sources[i].count * dtype_size(dtype);
    }
    *out = *copy;
    return STATUS_OK;
}

enum status weights_prepare(struct weight_store *store, enum weight_kind kind,
                            struct weight *weight, void *copy, int64_t size_bytes,
                            struct error *err)
{
    struct device *dev = store->dev;
    bool is_plan = store->options.mode == WEIGHTS_PLAN;
    int64_t prepared_bytes = (int64_t)dev->ops.prepared_weight_bytes(dev, weight);
    bool is_copied = prepared_bytes > 0 || (is_plan ? !weight->data : copy != NULL);
    if (is_copied)
        weights_count_bytes(store, kind, prepared_bytes > 0 ? prepared_bytes : size_bytes, 0);
    else
        weights_count_bytes(store, kind, 0, size_bytes);
    if (is_plan)
        return STATUS_OK;
    enum status status = dev->ops.prepare_weight(dev, weight, err);
    if (weight->is_packed) {
        weights_keep_allocation(store, (void *)(uintptr_t)weight->data, true);
        free(copy);
    } else if (copy) {
        weights_keep_allocation(store, copy, false);
    }
    return status;
}

enum status weights_load_bias(const struct weights *w, const struct weights_part *parts,
                              size_t num_parts, const void **out, struct error *err)
{
    struct weight_store *store = w->store;
    int64_t out_features = 0;
    for (size_t i = 0; i < num_parts; i++)
        out_features += parts[i].out_features;
    weights_count_bytes(store, weights_kind_of(weights_full_name(w, parts[0].module, ".bias").text),
                        out_features * (int64_t)sizeof(float), 0);
    float *bias = NULL;
    if (store->options.mode == WEIGHTS_LOAD)
        bias = arena_array(&store->arena, float, out_features);
    *out = bias;
    for (size_t i = 0; i < num_parts; i++) {
        struct source source;
        TRY(weights_find_source(w, weights_full_name(w, parts[i].module, ".bias"), -1,
                                parts[i].out_features, &source, err));
        if (bias) {
            TRY(read_vector(bias, w, &source, err));
            bias += parts[i].out_features;
        }
    }
    return STATUS_OK;
}

bool weights_makes_up(const struct weight_store *store, enum dtype dtype)
{
    return store->options.is_dummy && store->options.mode == WEIGHTS_LOAD &&
           store->dev->ops.make_up &&
           (dtype_size(dtype) == sizeof(uint16_t) || dtype == DTYPE_F8_E4M3);
}

void weights_make_up(const struct weight_store *store, void *dst, const struct source *sources,
                     size_t num_sources, enum dtype dtype)
{
    char *end = dst;
    for (size_t i = 0; i < num_sources; i++) {
        const struct dummy_source from = dummy_source(dtype, str_from(sources[i].name.text));
        size_t count = dtype == DTYPE_F8_E4M3 ? sources[i].count / 2 : sources[i].count;
        store->dev->ops.make_up(store->dev, end, from.levels, from.key, count);
        end += sources[i].count * dtype_size(dtype);
    }
}

/** Whether a device can make up these parameters: each but the first begins where whole groups of
 *  values can be written, and pairs of e4m3 are whole. */
static bool is_aligned(const struct source *sources, size_t num_sources, enum dtype dtype)
{
    const size_t group = dtype == DTYPE_F8_E4M3 ? 16 : 8;
    for (size_t i = 0; i + 1 < num_sources; i++) {
        if (sources[i].count % group != 0)
            return false;
    }
    return dtype != DTYPE_F8_E4M3 || sources[num_sources - 1].count % 2 == 0;
}

enum status weights_place(const struct weights *w, const struct source *sources, size_t num_sources,
                          enum dtype dtype, struct weight *out, struct error *err)
{
    enum weight_kind kind = weights_kind_of(sources[0].name.text);
    int64_t size_bytes = out->out_features * out->in_features * (int64_t)dtype_size(dtype);
    void *copy = NULL;
    if (weights_makes_up(w->store, dtype) && is_aligned(sources, num_sources, dtype)) {
        TRY(weights_prepare(w->store, kind, out, NULL, size_bytes, err));
        weights_make_up(w->store, (void *)(uintptr_t)out->data, sources, num_sources, dtype);
        return STATUS_OK;
    }
    enum status status =
        weights_join_sources(w, sources, num_sources, dtype, &out->data, &copy, err);
    if (status != STATUS_OK) {
        free(copy);
        return status;
    }
    return weights_prepare(w->store, kind, out, copy, size_bytes, err);
}

const struct quant_scheme *weights_scheme(const struct weights *w, const char *module)
{
    return quantization_scheme(w->store->options.quantization,
                               weights_full_name(w, module, "").text);
}

/** How all parts are stored: they are multiplied as one matrix, so there is one answer. */
static enum status find_scheme(const struct weights *w, const struct weights_part *parts,
                               size_t num_parts, const struct quant_scheme **out, struct error *err)
{
    *out = weights_scheme(w, parts[0].module);
    for (size_t i = 1; i < num_parts; i++) {
        const struct quant_scheme *scheme = weights_scheme(w, parts[i].module);
        if (scheme != *out)
            return error_set(err, STATUS_UNSUPPORTED,
                             "%s is %s, but %s, which is multiplied together with it, is %s: both "
                             "have to be stored alike",
                             weights_full_name(w, parts[0].module, "").text,
                             *out ? "quantized" : "not quantized",
                             weights_full_name(w, parts[i].module, "").text,
                             !scheme ? "not"
                             : *out  ? "in another way"
                                     : "quantized");
    }
    return STATUS_OK;
}

enum status weights_matrix(const struct weights *w, const struct weights_part *parts,
                           size_t num_parts, int64_t in_features, bool has_bias, struct weight *out,
                           struct error *err)
{
    assert(num_parts > 0 && num_parts <= MAX_PARTS);
    const struct quant_scheme *scheme;
    TRY(find_scheme(w, parts, num_parts, &scheme, err));
    if (scheme)
        return weights_matrix_f8(w, parts, num_parts, in_features, has_bias, scheme, out, err);
    struct source sources[MAX_PARTS];
    int64_t out_features = 0;
    for (size_t i = 0; i < num_parts; i++) {
        TRY(weights_find_source(w, weights_full_name(w, parts[i].module, ".weight"),
                                parts[i].out_features, in_features, &sources[i], err));
        out_features += parts[i].out_features;
    }
    enum dtype dtype = weights_kept_dtype(w->store, &sources[0]);
    *out = (struct weight){
        .form = weights_form_of(dtype), .out_features = out_features, .in_features = in_features};
    if (has_bias)
        TRY(weights_load_bias(w, parts, num_parts, &out->bias, err));
    return weights_place(w, sources, num_parts, dtype, out, err);
}

enum status weights_table(const struct weights *w, const char *name, int64_t rows, int64_t cols,
                          struct tensor *out, struct error *err)
{
    struct source source;
    TRY(weights_find_source(w, weights_full_name(w, name, ""), rows, cols, &source, err));
    enum dtype dtype = weights_kept_dtype(w->store, &source);
    int64_t size_bytes = rows * cols * (int64_t)dtype_size(dtype);
    if (weights_makes_up(w->store, dtype)) {
        void *table;
        weights_count_bytes(w->store, weights_kind_of(source.name.text), size_bytes, 0);
        TRY(weights_keep_on_device(w->store, NULL, (size_t)size_bytes, &table, err));
        weights_make_up(w->store, table, &source, 1, dtype);
        *out = tensor_2d(table, dtype, rows, cols);
        return STATUS_OK;
    }
    const void *data;
    void *copy;
    enum status status = weights_join_sources(w, &source, 1, dtype, &data, &copy, err);
    bool is_in_place = w->store->dev->has_host_memory && is_readable_in_place(&source, dtype);
    if (w->store->options.mode == WEIGHTS_PLAN) {
        if (!w->store->dev->has_host_memory)
            data = NULL; // it will lie on the device
    } else if (!w->store->dev->has_host_memory && data && status == STATUS_OK) {
        void *table = NULL;
        status = weights_keep_on_device(w->store, data, (size_t)size_bytes, &table, err);
        free(copy);
        data = table;
    } else if (copy) {
        weights_keep_allocation(w->store, copy, false);
    }
    // The table is only ever read; a tensor's pointer has no const of its own.
    *out = tensor_2d((void *)(uintptr_t)data, dtype, rows, cols);
    weights_count_bytes(w->store, weights_kind_of(source.name.text), is_in_place ? 0 : size_bytes,
                        is_in_place ? size_bytes : 0);
    return status;
}

enum status weights_matrix_from_table(const struct weights *w, struct tensor table,
                                      struct weight *out, struct error *err)
{
    struct weight_store *store = w->store;
    *out = (struct weight){.form = weights_form_of(table.dtype),
                           .out_features = table.shape[0],
                           .in_features = table.shape[1],
                           .data = table.data};
    if (!store->dev->has_host_memory) // on the device already, in a form that it multiplies
        return STATUS_OK;
    size_t prepared_bytes = store->dev->ops.prepared_weight_bytes(store->dev, out);
    weights_count_bytes(store, WEIGHT_KIND_HEAD, (int64_t)prepared_bytes, 0);
    if (store->options.mode == WEIGHTS_PLAN)
        return STATUS_OK;
    enum status status = store->dev->ops.prepare_weight(store->dev, out, err);
    if (out->is_packed)
        weights_keep_allocation(store, (void *)(uintptr_t)out->data, true);
    return status;
}

enum status weights_reserve(const struct weights *w, size_t size_bytes, void **out,
                            struct error *err)
{
    struct weight_store *store = w->store;
    *out = NULL;
    weights_count_bytes(store, WEIGHT_KIND_TABLES, (int64_t)size_bytes, 0);
    if (store->options.mode == WEIGHTS_PLAN)
        return STATUS_OK;
    *out = store->dev->ops.alloc(store->dev, size_bytes);
    if (!*out)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%zu bytes for a table were refused",
                         size_bytes);
    weights_keep_allocation(store, *out, true);
    return STATUS_OK;
}
