// The body of /v1/completions.
#include <string.h>

#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/memory.h"

static enum status parse_prompt_item(struct completion_prompt *out, const json_t *item,
                                     const char *loc, struct arena *arena, struct api_error *err)
{
    if (json_is_string(item)) {
        out->text = json_str(item);
        return STATUS_OK;
    }
    if (json_is_array(item)) {
        int32_t *ids;
        TRY(token_ids_parse(item, loc, &ids, &out->num_ids, arena, err));
        out->ids = ids;
        return STATUS_OK;
    }
    char input[160];
    json_summary(item, input, sizeof(input));
    return api_error_schema(err, "prompt_type", loc, input,
                            "Input should be a string, a list of token ids, or a list of either");
}

enum status prompts_parse(const json_t *body, const char *key, size_t max,
                          const struct completion_prompt **out, int32_t *num_prompts,
                          struct arena *arena, struct api_error *err)
{
    struct json_field field = json_field_get(body, key);
    bool is_list = json_is_array(field.value);
    const json_t *first = is_list ? json_array_get(field.value, 0) : NULL;
    bool single = !is_list || json_is_number(first);
    size_t count = single ? 1 : json_array_size(field.value);
    if (count > max)
        return api_error_schema(err, "too_long", field.loc, NULL,
                                "A request can hold at most %zu prompts, got %zu", max, count);
    struct completion_prompt *prompts = arena_calloc(arena, count, sizeof(*prompts));
    for (size_t i = 0; i < count; i++) {
        char loc[128];
        snprintf(loc, sizeof(loc), "%s", field.loc);
        if (!single)
            snprintf(loc, sizeof(loc), "%s.%zu", field.loc, i);
        TRY(parse_prompt_item(&prompts[i], single ? field.value : json_array_get(field.value, i),
                              loc, arena, err));
    }
    *num_prompts = (int32_t)count;
    *out = prompts;
    return STATUS_OK;
}

static enum status parse_prompt(struct completion_request *r, const json_t *body,
                                struct arena *arena, struct api_error *err)
{
    struct json_field field = json_field_get(body, "prompt");
    if (!field.value || (json_is_array(field.value) && json_array_size(field.value) == 0))
        return api_error_validator(
            err, "prompt", "Either prompt or prompt_embeds must be provided and non-empty.");
    return prompts_parse(body, "prompt", MAX_PROMPTS, &r->prompts, &r->num_prompts, arena, err);
}

static enum status parse_logprobs(struct completion_request *r, const json_t *body,
                                  struct api_error *err)
{
    struct generation_fields *common = &r->common;
    int64_t logprobs;
    bool given;
    TRY(prompt_logprobs_parse(body, common->stream, &common->sampling.num_prompt_logprobs, err));
    TRY(json_field_int(body, "logprobs", &logprobs, &given, err));
    if (!given)
        return STATUS_OK;
    if (logprobs < 0)
        return api_error_validator(err, "logprobs", "`logprobs` must be a positive value.");
    common->sampling.num_logprobs = (int32_t)min_i64(logprobs, INT32_MAX);
    // Echoed prompts are scored as the answer is.
    if (common->echo && common->sampling.num_prompt_logprobs == NUM_LOGPROBS_NONE)
        common->sampling.num_prompt_logprobs = common->sampling.num_logprobs;
    return STATUS_OK;
}

enum status completion_request_parse(struct completion_request *r, const json_t *body,
                                     const struct protocol_config *config, struct arena *arena,
                                     struct api_error *err)
{
    *r = (struct completion_request){0};
    TRY(body_require_object(body, err));
    TRY(generation_fields_parse(&r->common, body, config, arena, err));
    TRY(parse_prompt(r, body, arena, err));
    r->common.add_special_tokens = true;
    TRY(json_field_bool(body, "add_special_tokens", &r->common.add_special_tokens, NULL, err));
    struct sampling_fields *f = &r->common.sampling;
    f->max_tokens_field = "max_tokens";
    f->default_max_tokens = 16;
    TRY(json_field_int(body, "max_tokens", &f->max_tokens, &f->has_max_tokens, err));
    if (json_field_get(body, "suffix").value)
        return api_error_validator(err, "suffix", "suffix is not currently supported");
    return parse_logprobs(r, body, err);
}
