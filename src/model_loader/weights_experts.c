// The matrices of a layer's experts. Where weights are multiplied in place, each expert's stay
// where they are mapped; a device with memory of its own gets them under one another in one
// allocation.
#include <stdlib.h>

#include "base/memory.h"
#include "model_loader/weights_source.h"

enum { MAX_EXPERT_PARTS = 2 };

/** What is known of all experts while they are loaded one after the other. */
struct experts_load {
    const struct weights *w;
    const struct weights_part *parts;
    size_t num_parts;
    struct expert_weights *out;
    enum dtype dtype;     // of the first expert's first part; all become it
    int64_t expert_bytes; // of one
    const void **data;    // [num_experts]; NULL in PLAN mode
    char *stacked;        // device memory for all; NULL: they stay where they are
};

static enum status find_parts(struct experts_load *load, int32_t expert, struct source *sources,
                              struct error *err)
{
    struct weights inner = weights_at(load->w, "experts.%d", expert);
    for (size_t i = 0; i < load->num_parts; i++) {
        if (weights_scheme(&inner, load->parts[i].module))
            return error_set_field(err, STATUS_UNSUPPORTED, "quantization",
                                   "%s: experts of quantized models (%s) are not supported",
                                   weights_full_name(&inner, load->parts[i].module, "").text,
                                   quantization_method(load->w->store->options.quantization));
        TRY(weights_find_source(&inner, weights_full_name(&inner, load->parts[i].module, ".weight"),
                                load->parts[i].out_features, load->out->in_features, &sources[i],
                                err));
    }
    return STATUS_OK;
}

/** Whether the device makes dummy values itself, which it does in groups of eight. */
static bool makes_up(const struct experts_load *load)
{
    bool is_aligned = true;
    for (size_t i = 0; i < load->num_parts; i++)
        is_aligned = is_aligned && load->parts[i].out_features * load->out->in_features % 8 == 0;
    return load->stacked && is_aligned && weights_makes_up(load->w->store, load->dtype);
}

static enum status load_expert(struct experts_load *load, int32_t expert, struct error *err)
{
    struct weight_store *store = load->w->store;
    struct source sources[MAX_EXPERT_PARTS];
    TRY(find_parts(load, expert, sources, err));
    if (makes_up(load)) {
        char *to = load->stacked + expert * load->expert_bytes;
        weights_count_bytes(store, WEIGHT_KIND_EXPERTS, load->expert_bytes, 0);
        weights_make_up(store, to, sources, load->num_parts, load->dtype);
        load->data[expert] = to;
        return STATUS_OK;
    }
    const void *data;
    void *copy;
    enum status status =
        weights_join_sources(load->w, sources, load->num_parts, load->dtype, &data, &copy, err);
    if (status != STATUS_OK) {
        free(copy);
        return status;
    }
    if (!store->dev->has_host_memory) {
        weights_count_bytes(store, WEIGHT_KIND_EXPERTS, load->expert_bytes, 0);
        if (load->stacked) {
            char *to = load->stacked + expert * load->expert_bytes;
            store->dev->ops.copy_in(store->dev, to, data, (size_t)load->expert_bytes);
            data = to;
        }
        free(copy);
    } else {
        bool is_copied = store->options.mode == WEIGHTS_PLAN ? !data : copy != NULL;
        weights_count_bytes(store, WEIGHT_KIND_EXPERTS, is_copied ? load->expert_bytes : 0,
                            is_copied ? 0 : load->expert_bytes);
        if (copy)
            weights_keep_allocation(store, copy, false);
    }
    if (load->data)
        load->data[expert] = data;
    return STATUS_OK;
}

/** Memory for all experts, and the list of where each lies. */
static enum status start_load(struct experts_load *load, struct error *err)
{
    struct weight_store *store = load->w->store;
    struct device *dev = store->dev;
    struct source first[MAX_EXPERT_PARTS];
    TRY(find_parts(load, 0, first, err));
    load->dtype = weights_kept_dtype(store, &first[0]);
    size_t bytes, all_bytes;
    if (!size_mul(&bytes, (size_t)load->out->out_features, (size_t)load->out->in_features) ||
        !size_mul(&bytes, bytes, dtype_size(load->dtype)) ||
        !size_mul(&all_bytes, bytes, (size_t)load->out->num_experts) || all_bytes > INT64_MAX)
        return error_set(err, STATUS_TOO_LARGE, "%s: %d experts of this size are too large",
                         first[0].name.text, load->out->num_experts);
    load->expert_bytes = (int64_t)bytes;
    load->out->form = weights_form_of(load->dtype);
    if (store->options.mode == WEIGHTS_PLAN)
        return STATUS_OK;
    load->data = arena_array(&store->arena, const void *, load->out->num_experts);
    if (dev->has_host_memory)
        return STATUS_OK;
    load->stacked = dev->ops.alloc(dev, all_bytes);
    if (!load->stacked)
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes of device memory for experts were refused", all_bytes);
    weights_keep_allocation(store, load->stacked, true);
    return STATUS_OK;
}

enum status weights_experts(const struct weights *w, const struct weights_part *parts,
                            size_t num_parts, int32_t num_experts, int64_t in_features,
                            struct expert_weights *out, struct error *err)
{
    assert(num_parts > 0 && num_parts <= MAX_EXPERT_PARTS && num_experts > 0);
    struct weight_store *store = w->store;
    *out = (struct expert_weights){.num_experts = num_experts, .in_features = in_features};
    for (size_t i = 0; i < num_parts; i++)
        out->out_features += parts[i].out_features;
    struct experts_load load = {.w = w, .parts = parts, .num_parts = num_parts, .out = out};
    TRY(start_load(&load, err));
    for (int32_t expert = 0; expert < num_experts; expert++)
        TRY(load_expert(&load, expert, err));
    out->data = load.data;
    out->stacked = load.stacked;
    if (store->dev->has_host_memory)
        return STATUS_OK;
    size_t list_bytes = (size_t)num_experts * sizeof(*load.data);
    weights_count_bytes(store, WEIGHT_KIND_EXPERTS, (int64_t)list_bytes, 0);
    if (!load.data)
        return STATUS_OK;
    void *list = NULL;
    TRY(weights_keep_on_device(store, load.data, list_bytes, &list, err));
    out->data = list;
    return STATUS_OK;
}
