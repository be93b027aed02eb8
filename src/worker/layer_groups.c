// Which layers share a block table: see layer_groups.h.
#include "worker/layer_groups.h"

#include <stdlib.h>

#include "base/memory.h"

/** Layers of one kind, before they are split into groups. */
struct bucket {
    int32_t window; // 0: full
    int32_t num_layers;
};

static int32_t effective_window(int32_t window, int32_t max_model_len)
{
    return window >= max_model_len ? 0 : window;
}

static enum status fill_buckets(struct bucket *buckets, int32_t *num_buckets,
                                const int32_t *windows, int32_t num_layers, int32_t max_model_len,
                                struct error *err)
{
    *num_buckets = 0;
    for (int32_t layer = 0; layer < num_layers; layer++) {
        int32_t window = effective_window(windows[layer], max_model_len), b = 0;
        while (b < *num_buckets && buckets[b].window != window)
            b++;
        if (b == MAX_KV_CACHE_GROUPS)
            return error_set(err, STATUS_UNSUPPORTED,
                             "the model's layers have more than %d different attention windows",
                             MAX_KV_CACHE_GROUPS);
        if (b == *num_buckets)
            buckets[(*num_buckets)++] = (struct bucket){window, 0};
        buckets[b].num_layers++;
    }
    return STATUS_OK;
}

static int32_t count_groups(const struct bucket *buckets, int32_t num_buckets, int32_t group_size)
{
    int32_t count = 0;
    for (int32_t b = 0; b < num_buckets; b++)
        count += (int32_t)ceil_div(buckets[b].num_layers, group_size);
    return count;
}

/** Layers a group: as many as the smallest kind has, so that blocks have little unused room; more
 *  when the kinds are nearly equal, or when there would be too many groups. */
static int32_t choose_group_size(const struct bucket *buckets, int32_t num_buckets)
{
    int32_t smallest = buckets[0].num_layers, largest = smallest;
    for (int32_t b = 1; b < num_buckets; b++) {
        smallest = min_i32(smallest, buckets[b].num_layers);
        largest = max_i32(largest, buckets[b].num_layers);
    }
    int32_t size = 2 * (int64_t)largest < 3 * (int64_t)smallest ? largest : smallest;
    while (count_groups(buckets, num_buckets, size) > MAX_KV_CACHE_GROUPS)
        size++;
    return size;
}

/** Splits one kind's layers over its groups in turn: group i takes every n-th layer from the i-th.
 */
static int32_t *split_bucket(struct kv_cache_config *kv_cache, const struct bucket *bucket,
                             int32_t num_groups, const int32_t *windows, int32_t num_layers,
                             int32_t max_model_len, int32_t *storage)
{
    for (int32_t i = 0; i < num_groups; i++) {
        struct kv_cache_group *group = &kv_cache->groups[kv_cache->num_groups++];
        *group = (struct kv_cache_group){
            .kind = bucket->window ? KV_CACHE_GROUP_SLIDING : KV_CACHE_GROUP_FULL,
            .window = bucket->window,
            .layers = storage,
        };
        int32_t number = 0; // of the layer within its kind
        for (int32_t layer = 0; layer < num_layers; layer++) {
            if (effective_window(windows[layer], max_model_len) != bucket->window)
                continue;
            if (number++ % num_groups == i)
                storage[group->num_layers++] = layer;
        }
        kv_cache->layers_per_group = max_i32(kv_cache->layers_per_group, group->num_layers);
        storage += group->num_layers;
    }
    return storage;
}

enum status layer_groups_init(struct kv_cache_config *kv_cache, const int32_t *windows,
                              int32_t num_layers, int32_t max_model_len, struct error *err)
{
    struct bucket buckets[MAX_KV_CACHE_GROUPS] = {0};
    int32_t num_buckets;
    TRY(fill_buckets(buckets, &num_buckets, windows, num_layers, max_model_len, err));
    int32_t group_size = choose_group_size(buckets, num_buckets);
    int32_t *storage = xcalloc((size_t)num_layers, sizeof(*storage));
    kv_cache->num_groups = 0;
    kv_cache->layers_per_group = 0;
    for (int32_t b = 0; b < num_buckets; b++)
        storage = split_bucket(kv_cache, &buckets[b],
                               (int32_t)ceil_div(buckets[b].num_layers, group_size), windows,
                               num_layers, max_model_len, storage);
    return STATUS_OK;
}

void layer_groups_deinit(struct kv_cache_config *kv_cache)
{
    // The first group's list is where all lists begin.
    if (kv_cache->num_groups > 0)
        free((void *)(uintptr_t)kv_cache->groups[0].layers);
    *kv_cache = (struct kv_cache_config){0};
}

int64_t layer_groups_blocks(const struct kv_cache_config *kv_cache, int32_t len,
                            int32_t max_num_batched_tokens)
{
    int64_t blocks = 0, block_size = kv_cache->block_size;
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        const struct kv_cache_group *group = &kv_cache->groups[g];
        int64_t all = ceil_div(len, block_size);
        if (group->kind == KV_CACHE_GROUP_SLIDING) {
            // The window before the step's first token, the step itself, and a block more since
            // neither end needs to lie on a block's border.
            int64_t span = (int64_t)group->window - 1 + max_num_batched_tokens;
            all = min_i64(all, ceil_div(span, block_size) + 1);
        }
        blocks += all;
    }
    return blocks;
}

int32_t layer_groups_longest(const struct kv_cache_config *kv_cache, int64_t num_blocks,
                             int32_t max_len, int32_t max_num_batched_tokens)
{
    int32_t fits = 0, too_long = max_len;
    if (layer_groups_blocks(kv_cache, max_len, max_num_batched_tokens) <= num_blocks)
        return max_len;
    while (too_long - fits > 1) {
        int32_t middle = fits + (too_long - fits) / 2;
        if (layer_groups_blocks(kv_cache, middle, max_num_batched_tokens) <= num_blocks)
            fits = middle;
        else
            too_long = middle;
    }
    return fits;
}
