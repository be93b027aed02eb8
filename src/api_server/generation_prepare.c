// From a body to prompts that the engine will take, or to the error that the client will read. All
// of it may run on a thread of the pool: it reads facts that do not change, and the shared page.
#include <inttypes.h>
#include <string.h>

#include "api_server/constraint_conflicts.h"
#include "api_server/constraint_fields.h"
#include "api_server/generation.h"
#include "api_server/json_body.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"

enum { MAX_CACHE_SALT_BYTES = 4096, MAX_REQUEST_ID_BYTES = 512 };

/** The header's id, else the body's, else a fresh one, behind the endpoint's prefix. */
static enum status choose_id(struct generation *g, struct api_error *err)
{
    struct str id = g->header_request_id.len > 0 ? g->header_request_id : g->fields->request_id;
    if (id.len > MAX_REQUEST_ID_BYTES)
        return api_error_param(err, "request_id", NULL,
                               "request_id can have at most %d bytes, got %zu.",
                               MAX_REQUEST_ID_BYTES, id.len);
    char fresh[33];
    if (id.len == 0) {
        random_hex(fresh, 32);
        id = str_from(fresh);
    }
    g->id = arena_printf(&g->arena, "%s" STR_FORMAT, g->kind->id_prefix, STR_ARG(id));
    return STATUS_OK;
}

static enum status check_rank(const struct generation *g, struct api_error *err)
{
    char text[16], *end;
    if (g->data_parallel_rank.len == 0 || g->data_parallel_rank.len >= sizeof(text))
        return STATUS_OK;
    memcpy(text, g->data_parallel_rank.ptr, g->data_parallel_rank.len);
    text[g->data_parallel_rank.len] = '\0';
    long rank = strtol(text, &end, 10);
    if (*end == '\0' && rank != 0)
        return api_error_set(err, API_ERROR_VALUE, "data_parallel_rank %ld is out of range [0, 1).",
                             rank);
    return STATUS_OK;
}

/** Text that cannot fit whatever its tokens are, found before any is made. */
static enum status check_text_length(const struct generation *g, struct str text,
                                     int32_t max_model_len, struct api_error *err)
{
    const struct sampling_fields *s = &g->fields->sampling;
    int64_t longest = tokenizer_max_token_bytes(g->server->facts.tokenizer);
    int64_t limit = (int64_t)max_model_len * max_i64(longest, 1);
    if (g->fields->has_truncate_prompt_tokens || (int64_t)text.len <= limit)
        return STATUS_OK;
    int64_t chars = (int64_t)utf8_count(text);
    if (chars <= limit)
        return STATUS_OK;
    char value[24];
    snprintf(value, sizeof(value), "%" PRId64, chars);
    return api_error_param(
        err, "input_text", value,
        "This model's maximum context length is %d tokens. However, you requested %" PRId64
        " output tokens and your prompt contains %" PRId64 " characters (more than %" PRId64
        " characters, which is the upper bound for %d input tokens). Please reduce the length of "
        "the input prompt or the number of requested output tokens.",
        max_model_len, sampling_requested_output(s), chars, limit, max_model_len);
}

static enum status truncate(const struct generation *g, struct prompt *p, int32_t max_model_len,
                            struct api_error *err)
{
    const struct generation_fields *f = g->fields;
    if (!f->has_truncate_prompt_tokens)
        return STATUS_OK;
    int64_t keep = f->truncate_prompt_tokens;
    if (keep > max_model_len)
        return api_error_set(err, API_ERROR_VALUE,
                             "truncate_prompt_tokens value (%" PRId64
                             ") is greater than max_model_len (%d). Please request a smaller "
                             "truncation size.",
                             keep, max_model_len);
    if (keep == -1) {
        int64_t output = max_i64(sampling_requested_output(&f->sampling), g->kind->pools ? 0 : 1);
        keep = max_i64(max_model_len - output, 0);
    }
    if (p->num_ids > keep) {
        p->ids += f->truncate_right ? 0 : p->num_ids - keep;
        p->num_ids = (int32_t)keep;
    }
    return STATUS_OK;
}

static enum status finish_prompt(struct generation *g, struct prompt *p, int32_t max_model_len,
                                 struct api_error *err)
{
    const struct protocol_config *config = &g->server->facts.protocol;
    if (!p->ids) {
        if (!g->kind->any_length)
            TRY(check_text_length(g, p->text, max_model_len, err));
        p->ids = tokenizer_encode(g->server->facts.tokenizer, p->text,
                                  g->fields->add_special_tokens, &g->arena, &p->num_ids);
    }
    if (g->kind->any_length)
        return STATUS_OK;
    TRY(truncate(g, p, max_model_len, err));
    // The whole context may be prompt where no token follows.
    bool just_fits = g->kind->pools && p->num_ids == max_model_len;
    if (!just_fits)
        TRY(prompt_length_check(&g->fields->sampling, p->num_ids, max_model_len, err));
    for (int32_t i = 0; i < p->num_ids; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= config->vocab_size)
            return api_error_set(err, API_ERROR_VALUE, "Token id %d is out of vocabulary",
                                 p->ids[i]);
    }
    return STATUS_OK;
}

/** Ranges and limits for each prompt; what narrows answers down is made once for all. */
static enum status resolve_sampling(struct generation *g, int32_t max_model_len,
                                    struct api_error *err)
{
    // What engines take for parameters that nothing is drawn with.
    static const struct sampling_params neutral = {.top_p = 1,
                                                   .repetition_penalty = 1,
                                                   .max_tokens = 1,
                                                   .eos_token_id = -1,
                                                   .num_logprobs = -1,
                                                   .num_prompt_logprobs = -1};
    const struct sampling_fields *s = &g->fields->sampling;
    const struct model_facts *facts = &g->server->facts;
    bool max_tokens_zero = g->fields->echo && s->default_max_tokens > 0;
    for (int32_t i = 0; i < g->num_prompts; i++) {
        struct sampling_params *p = &g->prompts[i].sampling;
        const struct sampling_params *first = &g->prompts[0].sampling;
        if (g->kind->pools) {
            *p = neutral;
            continue;
        }
        TRY(sampling_resolve(s, &facts->protocol, g->prompts[i].num_ids, max_model_len,
                             max_tokens_zero, &g->arena, p, err));
        if (i == 0) {
            TRY(constraint_fields_resolve(s, &facts->protocol, facts->tokenizer, &g->arena, p,
                                          err));
            TRY(constraint_conflicts_check(s, facts->tokenizer, p, &g->arena, err));
            continue;
        }
        p->num_automaton_words = first->num_automaton_words;
        p->automaton = first->automaton;
        p->num_bad_word_ints = first->num_bad_word_ints;
        p->bad_words = first->bad_words;
        p->num_logprob_token_ids = first->num_logprob_token_ids;
        p->logprob_token_ids = first->logprob_token_ids;
        p->num_logprobs = first->num_logprobs;
    }
    return STATUS_OK;
}

static enum status prepare(struct generation *g, struct api_error *err)
{
    const struct api_server *server = g->server;
    TRY(json_body_parse(&g->json, g->body, err));
    TRY(g->kind->parse(g, err));
    TRY(api_server_check_model(server, g->fields->model, err));
    g->model = g->fields->model.len > 0 ? arena_strdup(&g->arena, g->fields->model)
                                        : server->options->served_model_names.items[0];
    if (!api_server_accepts(server, err))
        return STATUS_UNAVAILABLE;
    TRY(check_rank(g, err));
    TRY(choose_id(g, err));
    if (g->fields->cache_salt.len > MAX_CACHE_SALT_BYTES)
        return api_error_param(err, "cache_salt", NULL,
                               "cache_salt can have at most %d bytes, got %zu.",
                               MAX_CACHE_SALT_BYTES, g->fields->cache_salt.len);
    g->fields->cache_salt = arena_str(&g->arena, g->fields->cache_salt);
    TRY(g->kind->make_prompts(g, err));

    int32_t max_model_len = api_server_max_model_len(server);
    const struct sampling_fields *s = &g->fields->sampling;
    for (int32_t i = 0; i < g->num_prompts; i++)
        TRY(finish_prompt(g, &g->prompts[i], max_model_len, err));
    if (g->kind->any_length)
        return STATUS_OK;
    TRY(resolve_sampling(g, max_model_len, err));
    if (s->n * g->num_prompts > MAX_CHOICES)
        return api_error_set(err, API_ERROR_VALUE,
                             "n times the number of prompts must be at most %d, got %" PRId64 ".",
                             MAX_CHOICES, s->n * g->num_prompts);
    return STATUS_OK;
}

/** Keeps of the prompts' texts what the answer needs; the rest goes with the JSON. */
static void keep_texts(struct generation *g)
{
    bool keep = g->fields->echo || g->fields->return_prompt_text || g->kind->answer_prepared;
    for (int32_t i = 0; i < g->num_prompts; i++) {
        struct prompt *p = &g->prompts[i];
        if (!keep)
            p->text = (struct str){0};
        else if (p->text.ptr)
            p->text = arena_str(&g->arena, p->text);
        else
            p->text = tokenizer_decode(g->server->facts.tokenizer, p->ids, p->num_ids,
                                       g->fields->skip_special_tokens, &g->arena);
    }
}

enum status generation_prepare(struct generation *g)
{
    g->prepare_status = prepare(g, &g->error);
    if (g->prepare_status == STATUS_OK)
        keep_texts(g);
    json_decref(g->json);
    g->json = NULL;
    return g->prepare_status;
}
