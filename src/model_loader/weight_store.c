// What a model's parameters are kept in: the checkpoint, the memory made of it, what it takes, and
// which tensors nobody asked for. See weights.h.
#include <stdlib.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/memory.h"
#include "model_loader/weights_source.h"

enum { MAX_LISTED_NAMES = 8 };

/** Memory that the store gives back. */
struct weight_allocation {
    struct weight_allocation *next;
    void *ptr;
    bool is_device; // from the backend, not from the host's heap
};

enum status weight_store_open(struct weight_store *store, struct device *dev,
                              const struct weight_store_options *options, struct error *err)
{
    *store = (struct weight_store){.options = *options, .dev = dev};
    if (options->is_dummy)
        return STATUS_OK;
    TRY(checkpoint_open(&store->checkpoint, options->dir, err));
    store->is_used = xcalloc(store->checkpoint.num_tensors + 1, sizeof(bool));
    return STATUS_OK;
}

void weight_store_close(struct weight_store *store)
{
    if (!store)
        return;
    for (struct weight_allocation *a = store->allocations; a;) {
        struct weight_allocation *next = a->next;
        if (a->is_device)
            store->dev->ops.free(store->dev, a->ptr);
        else
            free(a->ptr);
        free(a);
        a = next;
    }
    free(store->is_used);
    checkpoint_close(&store->checkpoint);
    arena_deinit(&store->arena);
    *store = (struct weight_store){0};
}

void weights_keep_allocation(struct weight_store *store, void *ptr, bool is_device)
{
    struct weight_allocation *allocation = xmalloc(sizeof(*allocation));
    *allocation = (struct weight_allocation){store->allocations, ptr, is_device};
    store->allocations = allocation;
}

enum status weights_keep_on_device(struct weight_store *store, const void *values,
                                   size_t size_bytes, void **out, struct error *err)
{
    struct device *dev = store->dev;
    *out = dev->ops.alloc(dev, size_bytes);
    if (!*out)
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes of device memory for weights were refused", size_bytes);
    weights_keep_allocation(store, *out, true);
    if (values)
        dev->ops.copy_in(dev, *out, values, size_bytes);
    return STATUS_OK;
}

static bool is_harmless(struct str name, const char *const *prefixes, size_t num_prefixes)
{
    static const char *const SUFFIXES[] = {".rotary_emb.inv_freq", ".attn.bias", ".masked_bias"};
    for (size_t i = 0; i < ARRAY_LEN(SUFFIXES); i++) {
        if (str_ends_with(name, str_from(SUFFIXES[i])))
            return true;
    }
    for (size_t i = 0; i < num_prefixes; i++) {
        if (str_starts_with(name, str_from(prefixes[i])))
            return true;
    }
    return false;
}

static void list_name(struct buf *list, size_t count, struct str name)
{
    if (count < MAX_LISTED_NAMES)
        buf_printf(list, "%s" STR_FORMAT, count ? ", " : "", STR_ARG(str_slice(name, 0, 80)));
    else if (count == MAX_LISTED_NAMES)
        buf_append_c(list, " ...");
}

enum status weight_store_check_unused(const struct weight_store *store,
                                      const char *const *ignored_prefixes, size_t num_ignored,
                                      struct error *err)
{
    const struct checkpoint *checkpoint = &store->checkpoint;
    struct buf harmless = {0}, unknown = {0};
    size_t num_harmless = 0, num_unknown = 0;
    for (size_t i = 0; i < checkpoint->num_tensors; i++) {
        if (store->is_used[i])
            continue;
        struct str name = checkpoint->tensors[i]->name;
        if (is_harmless(name, ignored_prefixes, num_ignored))
            list_name(&harmless, num_harmless++, name);
        else
            list_name(&unknown, num_unknown++, name);
    }
    if (num_harmless > 0 && store->options.mode == WEIGHTS_LOAD)
        log_warning("Skipped %zu of the checkpoint's tensors, which are not needed: " STR_FORMAT,
                    num_harmless, STR_ARG(buf_str(&harmless)));
    enum status status = STATUS_OK;
    if (num_unknown > 0)
        status =
            error_set(err, STATUS_INVALID,
                      "%s: the model has no place for %zu of the checkpoint's tensors: " STR_FORMAT,
                      checkpoint->dir, num_unknown, STR_ARG(buf_str(&unknown)));
    buf_deinit(&harmless);
    buf_deinit(&unknown);
    return status;
}

void weights_count_bytes(struct weight_store *store, enum weight_kind kind, int64_t copied,
                         int64_t mapped)
{
    store->bytes.copied += copied;
    store->bytes.mapped += mapped;
    store->kind_bytes[kind] += copied + mapped;
}
