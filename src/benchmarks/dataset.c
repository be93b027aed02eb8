// The pieces that every dataset is made with: ids to text that counts the same again, counting, and
// repeating prompts when a file has too few.
#include "benchmarks/dataset.h"

#include <string.h>

#include "base/memory.h"
#include "benchmarks/dataset_parts.h"

enum { MAX_MENDS = 10, BYTES_PER_TOKEN = 4 };

// Without a tokenizer prompts are made of words that most vocabularies hold whole.
static const char *const words[] = {
    "time",    "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
    "life",    "child",   "world",    "school", "state",      "family", "student", "group",
    "country", "problem", "hand",     "part",   "place",      "case",   "week",    "company",
    "system",  "program", "question", "work",   "government", "number", "night",   "point",
    "home",    "water",   "room",     "mother", "area",       "money",  "story",   "fact",
    "month",   "lot",     "right",    "study",  "book",       "eye",    "job",     "word",
};

int32_t maker_id(const struct maker *maker, int64_t number)
{
    int64_t at = number % maker->pool_len;
    return maker->pool ? maker->pool[at] : (int32_t)at;
}

/** Ids that stand for text: no special tokens. */
static void fill_pool(struct maker *maker)
{
    const struct tokenizer *tokenizer = maker->use->tokenizer;
    if (!tokenizer) {
        maker->pool_len =
            maker->use->wants_ids ? maker->use->vocab_size : (int32_t)ARRAY_LEN(words);
        return;
    }
    int32_t vocab_size = tokenizer_vocab_size(tokenizer);
    maker->pool = arena_array(&maker->dataset->arena, int32_t, vocab_size + 1);
    for (int32_t id = 0; id < vocab_size; id++) {
        if (tokenizer_id_to_token(tokenizer, id).len > 0 && !tokenizer_is_special(tokenizer, id))
            maker->pool[maker->pool_len++] = id;
    }
    if (maker->pool_len == 0)
        maker->pool[maker->pool_len++] = 0;
    struct arena_mark mark = arena_mark(&maker->scratch);
    tokenizer_encode(tokenizer, (struct str){0}, true, &maker->scratch, &maker->num_special);
    arena_release(&maker->scratch, mark);
}

int32_t maker_count(struct maker *maker, struct str text)
{
    if (!maker->use->tokenizer)
        return max_i32(1, (int32_t)(text.len / BYTES_PER_TOKEN));
    int32_t num = 0;
    struct arena_mark mark = arena_mark(&maker->scratch);
    tokenizer_encode(maker->use->tokenizer, text, true, &maker->scratch, &num);
    arena_release(&maker->scratch, mark);
    return num;
}

bool maker_add(struct maker *maker, const struct bench_prompt *prompt)
{
    struct dataset *dataset = maker->dataset;
    if (dataset->num < maker->capacity)
        dataset->prompts[dataset->num++] = *prompt;
    return dataset->num < maker->capacity;
}

/**
 * The text of `ids` whose encoding has exactly `num` tokens again, or nearly: what decoding and
 * encoding turn into fewer or more tokens is filled up or cut, a few times over.
 */
static struct str mend_text(struct maker *maker, const int32_t *ids, int32_t num, int32_t *got)
{
    const struct tokenizer *tokenizer = maker->use->tokenizer;
    struct arena *scratch = &maker->scratch;
    int32_t *now = arena_array(scratch, int32_t, num + 1);
    memcpy(now, ids, (size_t)num * sizeof(*now));
    struct str text = {0};
    for (int tries = 0; tries < MAX_MENDS; tries++) {
        text = tokenizer_decode(tokenizer, now, num, false, scratch);
        int32_t *again = tokenizer_encode(tokenizer, text, false, scratch, got);
        if (*got == num)
            break;
        memcpy(now, again, (size_t)min_i32(num, *got) * sizeof(*now));
        for (int32_t i = *got; i < num; i++)
            now[i] = maker_id(maker, dice_below(&maker->dice, maker->pool_len));
    }
    return text;
}

static struct str join_words(struct maker *maker, const int32_t *ids, int32_t num)
{
    struct buf text = {0};
    for (int32_t i = 0; i < num; i++) {
        buf_append_c(&text, i > 0 ? " " : "");
        buf_append_c(&text, words[(size_t)ids[i] % ARRAY_LEN(words)]);
    }
    struct str copy = arena_str(&maker->dataset->arena, buf_str(&text));
    buf_deinit(&text);
    return copy;
}

bool maker_add_ids(struct maker *maker, int32_t *ids, int32_t num, int32_t output_len, double at_s)
{
    struct arena *arena = &maker->dataset->arena;
    struct bench_prompt prompt = {.num_tokens = num, .output_len = output_len, .at_s = at_s};
    if (maker->use->wants_ids) {
        int32_t *copy = arena_array(arena, int32_t, num);
        memcpy(copy, ids, (size_t)num * sizeof(*ids));
        prompt.ids = copy;
    } else if (maker->use->tokenizer) {
        struct arena_mark mark = arena_mark(&maker->scratch);
        struct str text = mend_text(maker, ids, num, &prompt.num_tokens);
        prompt.text = arena_str(arena, text);
        prompt.num_tokens += maker->num_special;
        arena_release(&maker->scratch, mark);
    } else {
        prompt.text = join_words(maker, ids, num);
    }
    return maker_add(maker, &prompt);
}

bool maker_add_text(struct maker *maker, struct str text, int32_t output_len)
{
    struct arena *arena = &maker->dataset->arena;
    struct bench_prompt prompt = {.output_len = output_len};
    if (maker->use->wants_ids) {
        prompt.ids = tokenizer_encode(maker->use->tokenizer, text, true, arena, &prompt.num_tokens);
    } else {
        prompt.text = arena_str(arena, text);
        prompt.num_tokens = maker_count(maker, text);
    }
    return maker_add(maker, &prompt);
}

static enum status fill(struct maker *maker, struct error *err)
{
    const struct bench_options *o = maker->options;
    bool has_texts = o->dataset == DATASET_SHAREGPT || o->dataset == DATASET_CUSTOM ||
                     o->dataset == DATASET_SONNET;
    if (has_texts && maker->use->wants_ids && !maker->use->tokenizer)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--dataset-name %s needs a tokenizer; see --tokenizer", o->dataset_name);
    switch (o->dataset) {
    case DATASET_RANDOM:
        make_random(maker);
        return STATUS_OK;
    case DATASET_PREFIX_REPETITION:
        make_prefix_repetition(maker);
        return STATUS_OK;
    case DATASET_SHAREGPT:
        return make_sharegpt(maker, err);
    case DATASET_CUSTOM:
        return make_custom(maker, err);
    case DATASET_SONNET:
        return make_sonnet(maker, err);
    case DATASET_TIMED_TRACE:
        return make_timed_trace(maker, err);
    case DATASET_BURSTGPT:
        return make_burstgpt(maker, err);
    }
    return error_set(err, STATUS_INTERNAL, "no dataset %d", (int)o->dataset);
}

enum status dataset_make(struct dataset *dataset, const struct bench_options *options,
                         const struct dataset_use *use, struct error *err)
{
    *dataset = (struct dataset){0};
    struct maker maker = {
        .dataset = dataset,
        .options = options,
        .use = use,
        .dice = dice_make((uint64_t)options->seed),
        .capacity = options->num_prompts,
    };
    dataset->prompts = arena_array(&dataset->arena, struct bench_prompt, maker.capacity);
    fill_pool(&maker);
    enum status status = fill(&maker, err);
    if (status == STATUS_OK && dataset->num == 0)
        status = error_set(err, STATUS_INVALID, "%s: no usable prompt", options->dataset_path);
    // A trace is what happened: it is not repeated.
    bool repeats = !options->no_oversample && options->dataset != DATASET_TIMED_TRACE;
    for (int32_t i = 0; status == STATUS_OK && repeats && dataset->num < maker.capacity; i++)
        dataset->prompts[dataset->num++] = dataset->prompts[i];
    arena_deinit(&maker.scratch);
    return status;
}

void dataset_deinit(struct dataset *dataset)
{
    arena_deinit(&dataset->arena);
    *dataset = (struct dataset){0};
}
