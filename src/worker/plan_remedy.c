// Which flags would make a refused plan fit. Every answer was tried: a plan was made with it.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "worker/host_memory.h"
#include "worker/layer_groups.h"
#include "worker/plan_report.h"

/** A refused plan and a copy of its options to change. */
struct search {
    const struct engine_config *refused;
    struct serve_options options;
    int64_t memory_bytes;
    struct plan_verdict *verdict;
};

static bool fits(const struct search *s)
{
    struct engine_config config;
    // Each try would tell of itself.
    enum log_level level = log_get_level();
    log_set_level(LOG_LEVEL_ERROR);
    enum status status =
        engine_config_plan_for(&config, &s->options, s->refused->model, s->memory_bytes, NULL);
    log_set_level(level);
    engine_config_deinit(&config);
    return status == STATUS_OK;
}

static struct plan_remedy *add_remedy(struct search *s)
{
    CHECK(s->verdict->num_remedies < MAX_PLAN_REMEDIES);
    return &s->verdict->remedies[s->verdict->num_remedies++];
}

static void forget_changes(struct search *s)
{
    s->options = *s->refused->options;
}

static void try_utilization(struct search *s)
{
    int32_t now = (int32_t)lround(100 * s->options.gpu_memory_utilization), least = 100;
    if (s->options.kv_cache_memory_bytes >= 0 || s->options.num_gpu_blocks_override > 0)
        return;
    for (int32_t low = now; least - low > 1;) {
        int32_t middle = low + (least - low) / 2;
        s->options.gpu_memory_utilization = middle / 100.0;
        if (fits(s))
            least = middle;
        else
            low = middle;
    }
    s->options.gpu_memory_utilization = least / 100.0;
    if (least > now && fits(s)) {
        struct plan_remedy *remedy = add_remedy(s);
        snprintf(remedy->flags, sizeof(remedy->flags), "--gpu-memory-utilization %.2f",
                 least / 100.0);
        snprintf(remedy->effect, sizeof(remedy->effect), "less memory stays for others");
    }
    forget_changes(s);
}

/** With a fixed size of the cache: the size that one request of full length needs. */
static void try_cache_size(struct search *s)
{
    const struct engine_config *refused = s->refused;
    int64_t blocks = layer_groups_blocks(&refused->kv_cache, refused->max_model_len,
                                         engine_config_tokens_in_flight(refused));
    int64_t bytes = blocks * refused->kv_cache.block_bytes;
    bool is_override = s->options.num_gpu_blocks_override > 0;
    if (is_override)
        s->options.num_gpu_blocks_override = (int32_t)min_i64(blocks, INT32_MAX);
    else if (s->options.kv_cache_memory_bytes >= 0)
        s->options.kv_cache_memory_bytes = bytes;
    else
        return;
    if (fits(s)) {
        struct plan_remedy *remedy = add_remedy(s);
        if (is_override)
            snprintf(remedy->flags, sizeof(remedy->flags), "--num-gpu-blocks-override %" PRId64,
                     blocks);
        else
            snprintf(remedy->flags, sizeof(remedy->flags), "--kv-cache-memory-bytes %" PRId64,
                     bytes);
        snprintf(remedy->effect, sizeof(remedy->effect), "the KV cache takes %s",
                 byte_text(bytes).text);
    }
    forget_changes(s);
}

/** The largest value in [1, now) of a flag with which the plan fits; 0: none. */
static int32_t largest_that_fits(struct search *s, int32_t now,
                                 void (*set)(struct search *, int32_t))
{
    int32_t good = 0;
    for (int32_t bad = now; bad - good > 1;) {
        int32_t middle = good + (bad - good) / 2;
        set(s, middle);
        if (fits(s))
            good = middle;
        else
            bad = middle;
    }
    forget_changes(s);
    return good;
}

static void set_batched_tokens(struct search *s, int32_t value)
{
    s->options.max_num_batched_tokens = value;
    // A step has room for all requests; fewer tokens mean fewer requests unless those were asked.
    if (s->options.max_num_seqs < 0)
        s->options.max_num_seqs = min_i32(s->refused->max_num_seqs, value);
}

static void set_seqs(struct search *s, int32_t value)
{
    s->options.max_num_seqs = value;
    s->options.max_num_batched_tokens = s->refused->max_num_batched_tokens;
}

static void set_model_len(struct search *s, int32_t value)
{
    s->options.max_model_len = value;
    if (s->options.long_prefill_token_threshold > value)
        s->options.long_prefill_token_threshold = value;
}

static void try_smaller(struct search *s)
{
    const struct {
        const char *flag, *effect;
        int32_t now, least;
        void (*set)(struct search *, int32_t);
    } FLAGS[] = {
        {"--max-num-batched-tokens", "long prompts take more steps",
         s->refused->max_num_batched_tokens, 1, set_batched_tokens},
        {"--max-num-seqs", "fewer requests run at once", s->refused->max_num_seqs, 1, set_seqs},
        {"--max-model-len", "longer requests are refused", s->refused->max_model_len, 1,
         set_model_len},
    };
    for (size_t i = 0; i < ARRAY_LEN(FLAGS); i++) {
        int32_t value = largest_that_fits(s, FLAGS[i].now, FLAGS[i].set);
        if (value < FLAGS[i].least)
            continue;
        struct plan_remedy *remedy = add_remedy(s);
        snprintf(remedy->flags, sizeof(remedy->flags), "%s %d", FLAGS[i].flag, value);
        snprintf(remedy->effect, sizeof(remedy->effect), "%s", FLAGS[i].effect);
    }
}

static void try_dtypes(struct search *s)
{
    s->options.kv_cache_dtype = "bfloat16";
    if (fits(s)) {
        struct plan_remedy *remedy = add_remedy(s);
        snprintf(remedy->flags, sizeof(remedy->flags), "--kv-cache-dtype bfloat16");
        snprintf(remedy->effect, sizeof(remedy->effect), "keys and values are rounded to 16 bits");
    }
    forget_changes(s);
    s->options.dtype = "bfloat16";
    if (fits(s)) {
        struct plan_remedy *remedy = add_remedy(s);
        snprintf(remedy->flags, sizeof(remedy->flags), "--dtype bfloat16");
        snprintf(remedy->effect, sizeof(remedy->effect), "weights are rounded to 16 bits");
    }
    forget_changes(s);
    s->options.quantization = "fp8";
    if (!s->refused->model->quantization && !s->refused->options->quantization && fits(s)) {
        struct plan_remedy *remedy = add_remedy(s);
        snprintf(remedy->flags, sizeof(remedy->flags), "--quantization fp8");
        snprintf(remedy->effect, sizeof(remedy->effect), "weights are rounded to 8 bits");
    }
    forget_changes(s);
}

/** Where no single flag is enough: small steps of few requests, and what length they leave. */
static void try_small_server(struct search *s)
{
    enum { FEW_SEQS = 8, SMALL_STEP = 256 };
    int32_t good = 0;
    s->options.max_num_seqs = FEW_SEQS;
    s->options.max_num_batched_tokens = SMALL_STEP;
    for (int32_t bad = s->refused->max_model_len + 1; bad - good > 1;) {
        int32_t middle = good + (bad - good) / 2;
        set_model_len(s, middle);
        if (fits(s))
            good = middle;
        else
            bad = middle;
    }
    forget_changes(s);
    if (good == 0)
        return;
    struct plan_remedy *remedy = add_remedy(s);
    snprintf(remedy->flags, sizeof(remedy->flags),
             "--max-num-seqs %d --max-num-batched-tokens %d --max-model-len %d", FEW_SEQS,
             SMALL_STEP, good);
    snprintf(remedy->effect, sizeof(remedy->effect), "a small server");
}

void plan_find_remedies(struct plan_verdict *verdict, const struct engine_config *refused,
                        int64_t memory_bytes)
{
    struct search s = {.refused = refused,
                       .options = *refused->options,
                       .memory_bytes = memory_bytes,
                       .verdict = verdict};
    verdict->num_remedies = 0;
    try_utilization(&s);
    try_cache_size(&s);
    try_dtypes(&s);
    try_smaller(&s);
    if (verdict->num_remedies == 0)
        try_small_server(&s);
}
