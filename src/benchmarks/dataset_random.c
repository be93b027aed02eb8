// Prompts without a file: random ones, and ones that share prefixes.
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "benchmarks/dataset_parts.h"

/** Uniform within `ratio` around `len`, at least `least`. */
static int32_t draw_len(struct dice *dice, int32_t len, double ratio, int32_t least)
{
    int64_t low = max_i64(least, (int64_t)floor(len * (1 - ratio)));
    int64_t high = max_i64(low, (int64_t)ceil(len * (1 + ratio)));
    return (int32_t)dice_between(dice, low, high);
}

static void draw_ids(struct maker *maker, int32_t *ids, int32_t num)
{
    for (int32_t i = 0; i < num; i++)
        ids[i] = maker_id(maker, dice_below(&maker->dice, maker->pool_len));
}

/** Makes one prompt of every `size`, for requests that hold several; the last may hold fewer. */
static void batch_prompts(struct maker *maker, int32_t size)
{
    struct dataset *dataset = maker->dataset;
    struct str *texts = arena_array(&dataset->arena, struct str, dataset->num);
    int32_t num = 0;
    for (int32_t i = 0; i < dataset->num; i++) {
        struct bench_prompt prompt = dataset->prompts[i]; // a batch may take its place
        texts[i] = prompt.text;
        if (i % size == 0)
            dataset->prompts[num++] = (struct bench_prompt){.batch = &texts[i]};
        dataset->prompts[num - 1].num_batch++;
        dataset->prompts[num - 1].num_tokens += prompt.num_tokens;
    }
    dataset->num = maker->capacity = num;
}

/** Request k: the shared prefix, then ids that count up from a random place, so that no two
 *  prompts begin alike. */
void make_random(struct maker *maker)
{
    const struct bench_options *o = maker->options;
    int32_t prefix_len = o->random_prefix_len;
    int32_t input_len = max_i32(0, o->random_input_len - maker->num_special);
    size_t most = (size_t)prefix_len + (size_t)ceil(input_len * (1 + o->input_range_ratio)) + 2;
    int32_t *ids = xcalloc(most, sizeof(*ids));
    draw_ids(maker, ids, prefix_len);
    bool goes_on = true;
    for (int64_t k = 0; goes_on; k++) {
        int32_t len = draw_len(&maker->dice, input_len, o->input_range_ratio, 0);
        int32_t output_len = draw_len(&maker->dice, o->random_output_len, o->output_range_ratio, 1);
        int64_t offset = dice_below(&maker->dice, maker->pool_len);
        len = prefix_len + len == 0 ? 1 : len; // an empty prompt is none
        for (int32_t i = 0; i < len; i++)
            ids[prefix_len + i] = maker_id(maker, offset + k + i);
        goes_on = maker_add_ids(maker, ids, prefix_len + len, output_len, 0);
    }
    free(ids);
    if (o->random_batch_size > 1)
        batch_prompts(maker, o->random_batch_size);
}

/** As many prompts of each prefix as of the others, in random order. */
void make_prefix_repetition(struct maker *maker)
{
    const struct bench_options *o = maker->options;
    int32_t prefix_len = o->prefix_repetition_prefix_len;
    int32_t suffix_len = o->prefix_repetition_suffix_len;
    int32_t num_prefixes = min_i32(o->prefix_repetition_num_prefixes, o->num_prompts);
    int32_t *ids = xcalloc((size_t)prefix_len + (size_t)suffix_len, sizeof(*ids));
    bool goes_on = true;
    for (int32_t k = 0; goes_on; k++) {
        // A prefix comes from its own number, so none needs to be kept.
        struct dice prefix = dice_make((uint64_t)o->seed * 1000003 + (uint64_t)(k % num_prefixes));
        for (int32_t i = 0; i < prefix_len; i++)
            ids[i] = maker_id(maker, dice_below(&prefix, maker->pool_len));
        draw_ids(maker, ids + prefix_len, suffix_len);
        goes_on =
            maker_add_ids(maker, ids, prefix_len + suffix_len, o->prefix_repetition_output_len, 0);
    }
    free(ids);
    struct dataset *dataset = maker->dataset;
    for (int32_t i = dataset->num - 1; i > 0; i--) {
        int32_t other = (int32_t)dice_below(&maker->dice, i + 1);
        struct bench_prompt prompt = dataset->prompts[i];
        dataset->prompts[i] = dataset->prompts[other];
        dataset->prompts[other] = prompt;
    }
}
