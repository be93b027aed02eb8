// Sampling fields as they stand in a body.
#include <inttypes.h>
#include <string.h>

#include "api_server/constraint_fields.h"
#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/memory.h"

enum status token_ids_parse(const json_t *array, const char *loc, int32_t **ids, int32_t *num_ids,
                            struct arena *arena, struct api_error *err)
{
    size_t count = json_array_size(array);
    *ids = arena_array(arena, int32_t, count ? count : 1);
    for (size_t i = 0; i < count; i++) {
        char item_loc[128];
        snprintf(item_loc, sizeof(item_loc), "%.90s.%zu", loc, i);
        const json_t *item = json_array_get(array, i);
        int64_t id;
        if (json_is_boolean(item))
            return api_error_schema(err, "int_type", item_loc, NULL,
                                    "Input should be a valid integer");
        TRY(json_value_int(item, item_loc, &id, err));
        if (id < 0 || id > INT32_MAX)
            return api_error_schema(err, "greater_than_equal", item_loc, NULL,
                                    "Token id %" PRId64 " is out of vocabulary", id);
        (*ids)[i] = (int32_t)id;
    }
    *num_ids = (int32_t)count;
    return STATUS_OK;
}

static enum status parse_stop(struct sampling_fields *f, const json_t *body, struct arena *arena,
                              struct api_error *err)
{
    struct json_field field = json_field_get(body, "stop");
    if (!field.value)
        return STATUS_OK;
    bool one = json_is_string(field.value);
    if (!one && !json_is_array(field.value))
        return api_error_schema(err, "string_type", field.loc, NULL,
                                "Input should be a valid string or a list of strings");
    size_t count = one ? 1 : json_array_size(field.value);
    if (count > MAX_STOP_STRINGS)
        return api_error_schema(err, "too_long", field.loc, NULL,
                                "stop can hold at most %d strings, got %zu", MAX_STOP_STRINGS,
                                count);
    f->stop = arena_array(arena, struct str, count ? count : 1);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = one ? field.value : json_array_get(field.value, i);
        if (!json_is_string(item)) {
            char loc[64];
            snprintf(loc, sizeof(loc), "body.stop.%zu", i);
            return api_error_schema(err, "string_type", loc, NULL,
                                    "Input should be a valid string");
        }
        f->stop[i] = arena_str(arena, json_str(item));
    }
    f->num_stop = (int32_t)count;
    return STATUS_OK;
}

static enum status parse_logit_bias(struct sampling_fields *f, const json_t *body,
                                    struct arena *arena, struct api_error *err)
{
    const json_t *object;
    TRY(json_field_object(body, "logit_bias", &object, err));
    if (!object)
        return STATUS_OK;
    size_t count = json_object_size(object);
    if (count > MAX_LOGIT_BIAS)
        return api_error_schema(err, "too_long", "body.logit_bias", NULL,
                                "logit_bias can hold at most %d tokens, got %zu", MAX_LOGIT_BIAS,
                                count);
    struct logit_bias *biases = arena_array(arena, struct logit_bias, count ? count : 1);
    int32_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char loc[96], *end;
        snprintf(loc, sizeof(loc), "body.logit_bias.%.40s", key);
        long id = strtol(key, &end, 10);
        if (*key == '\0' || *end != '\0' || id < 0 || id > INT32_MAX)
            return api_error_param(err, "logit_bias", NULL,
                                   "logit_bias keys must be token ids, got '%.40s'.", key);
        double bias;
        TRY(json_value_double(value, loc, &bias, err));
        bias = bias < -100 ? -100 : bias > 100 ? 100 : bias;
        biases[n++] = (struct logit_bias){(int32_t)id, (float)bias};
    }
    f->num_logit_bias = n;
    f->logit_bias = biases;
    return STATUS_OK;
}

static enum status parse_id_lists(struct sampling_fields *f, const json_t *body,
                                  struct arena *arena, struct api_error *err)
{
    const json_t *array;
    int32_t *ids;
    TRY(json_field_array(body, "stop_token_ids", &array, err));
    if (array) {
        TRY(token_ids_parse(array, "body.stop_token_ids", &ids, &f->num_stop_token_ids, arena,
                            err));
        f->stop_token_ids = ids;
    }
    TRY(json_field_array(body, "allowed_token_ids", &array, err));
    if (array) {
        f->has_allowed_token_ids = true;
        TRY(token_ids_parse(array, "body.allowed_token_ids", &ids, &f->num_allowed_token_ids, arena,
                            err));
        f->allowed_token_ids = ids;
    }
    return STATUS_OK;
}

static enum status parse_sampling(struct sampling_fields *f, const json_t *body,
                                  struct arena *arena, struct api_error *err)
{
    f->n = 1;
    f->num_logprobs = f->num_prompt_logprobs = NUM_LOGPROBS_NONE;
    TRY(json_field_double(body, "temperature", &f->temperature, &f->has_temperature, err));
    TRY(json_field_double(body, "top_p", &f->top_p, &f->has_top_p, err));
    TRY(json_field_double(body, "min_p", &f->min_p, &f->has_min_p, err));
    TRY(json_field_double(body, "presence_penalty", &f->presence_penalty, NULL, err));
    TRY(json_field_double(body, "frequency_penalty", &f->frequency_penalty, NULL, err));
    TRY(json_field_double(body, "repetition_penalty", &f->repetition_penalty,
                          &f->has_repetition_penalty, err));
    TRY(json_field_int(body, "top_k", &f->top_k, &f->has_top_k, err));
    TRY(json_field_int(body, "n", &f->n, NULL, err));
    TRY(json_field_int(body, "seed", &f->seed, &f->has_seed, err));
    if (f->has_seed && f->seed == -1)
        f->has_seed = false;
    TRY(json_field_int(body, "min_tokens", &f->min_tokens, NULL, err));
    TRY(json_field_bool(body, "ignore_eos", &f->ignore_eos, NULL, err));
    TRY(parse_stop(f, body, arena, err));
    TRY(parse_logit_bias(f, body, arena, err));
    TRY(constraint_fields_parse(f, body, arena, err));
    return parse_id_lists(f, body, arena, err);
}

enum status prompt_logprobs_parse(const json_t *body, bool stream, int32_t *num,
                                  struct api_error *err)
{
    int64_t value;
    bool given;
    TRY(json_field_int(body, "prompt_logprobs", &value, &given, err));
    if (!given)
        return STATUS_OK;
    if (value < -1)
        return api_error_validator(err, "prompt_logprobs",
                                   "`prompt_logprobs` must be a positive value or -1.");
    if (stream && value != 0)
        return api_error_validator(err, "prompt_logprobs",
                                   "`prompt_logprobs` are not available when `stream=True`.");
    // A stream has no place to put them: 0 with stream asks for nothing.
    if (!stream)
        *num = value == -1 ? NUM_LOGPROBS_ALL : (int32_t)min_i64(value, INT32_MAX);
    return STATUS_OK;
}

// ---- fields of features that are not here, and the values that mean "off" ----

static bool is_false(const json_t *v)
{
    return json_is_false(v);
}

static bool is_empty(const json_t *v)
{
    return (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static bool is_minus_one(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) == -1;
}

static bool is_text_format(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return type && strcmp(type, "text") == 0;
}

static bool never(const json_t *v)
{
    (void)v;
    return false;
}

static const struct {
    const char *name;
    bool (*means_off)(const json_t *value); // null and absent always do
} unsupported_fields[] = {
    {"use_beam_search", is_false},
    {"response_format", is_text_format},
    {"thinking_token_budget", is_minus_one},
    {"kv_transfer_params", is_empty},
    {"ec_transfer_params", is_empty},
    {"vllm_xargs", is_empty},
    {"prompt_embeds", never},
    {"mm_processor_kwargs", is_empty},
    {"media_io_kwargs", is_empty},
};

static enum status check_response_format(const json_t *body, struct api_error *err)
{
    const json_t *format;
    TRY(json_field_object(body, "response_format", &format, err));
    if (!format)
        return STATUS_OK;
    const char *type = json_string_value(json_object_get(format, "type"));
    static const char *const types[] = {"text", "json_object", "json_schema", "structural_tag"};
    bool known = false;
    for (size_t i = 0; type && i < ARRAY_LEN(types); i++)
        known = known || strcmp(type, types[i]) == 0;
    if (!known)
        return api_error_schema(err, "literal_error", "body.response_format.type", NULL,
                                "Input should be 'text', 'json_object', 'json_schema' or "
                                "'structural_tag'");
    if (strcmp(type, "json_schema") == 0 && !json_is_object(json_object_get(format, "json_schema")))
        return api_error_validator(err, "response_format",
                                   "When response_format type is 'json_schema', the 'json_schema' "
                                   "field must be provided.");
    return STATUS_OK;
}

static enum status refuse_unsupported(const json_t *body, struct api_error *err)
{
    TRY(check_response_format(body, err));
    for (size_t i = 0; i < ARRAY_LEN(unsupported_fields); i++) {
        struct json_field field = json_field_get(body, unsupported_fields[i].name);
        if (field.value && !unsupported_fields[i].means_off(field.value))
            return api_error_unsupported(err, unsupported_fields[i].name);
    }
    return STATUS_OK;
}

enum status body_require_object(const json_t *body, struct api_error *err)
{
    if (json_is_object(body))
        return STATUS_OK;
    char input[160];
    json_summary(body, input, sizeof(input));
    return api_error_schema(err, "model_attributes_type", "body", input,
                            "Input should be a valid dictionary or object to extract fields from");
}

static enum status parse_stream_options(struct generation_fields *f, const json_t *body,
                                        bool force_usage, struct api_error *err)
{
    const json_t *options;
    TRY(json_field_bool(body, "stream", &f->stream, NULL, err));
    TRY(json_field_object(body, "stream_options", &options, err));
    if (options && !f->stream)
        return api_error_validator(err, "stream_options",
                                   "Stream options can only be defined when `stream=True`.");
    if (options) {
        bool continuous = false;
        TRY(json_field_bool(options, "include_usage", &f->include_usage, NULL, err));
        TRY(json_field_bool(options, "continuous_usage_stats", &continuous, NULL, err));
        f->continuous_usage = f->include_usage && continuous;
    }
    if (force_usage)
        f->include_usage = f->continuous_usage = true;
    return STATUS_OK;
}

enum status truncation_fields_parse(struct generation_fields *f, const json_t *body,
                                    struct api_error *err)
{
    TRY(json_field_int(body, "truncate_prompt_tokens", &f->truncate_prompt_tokens,
                       &f->has_truncate_prompt_tokens, err));
    if (f->has_truncate_prompt_tokens && f->truncate_prompt_tokens < -1)
        return api_error_schema(err, "greater_than_equal", "body.truncate_prompt_tokens", NULL,
                                "Input should be greater than or equal to -1");
    struct str side;
    TRY(json_field_str(body, "truncation_side", &side, err));
    if (side.ptr && !str_eq_c(side, "left") && !str_eq_c(side, "right"))
        return api_error_schema(err, "literal_error", "body.truncation_side", NULL,
                                "Input should be 'left' or 'right'");
    f->truncate_right = side.ptr && str_eq_c(side, "right");
    return STATUS_OK;
}

enum status request_fields_parse(struct generation_fields *f, const json_t *body,
                                 struct api_error *err)
{
    TRY(json_field_int(body, "priority", &f->priority, NULL, err));
    TRY(json_field_str(body, "request_id", &f->request_id, err));
    TRY(json_field_str(body, "cache_salt", &f->cache_salt, err));
    if (f->cache_salt.ptr && f->cache_salt.len == 0)
        return api_error_validator(
            err, "cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.");
    return STATUS_OK;
}

/** Fields whose type is checked and whose value changes nothing here, and why. */
static enum status check_neutral_fields(const json_t *body, struct api_error *err)
{
    double number;
    // Weighs beams; without beam search there is nothing to weigh.
    return json_field_double(body, "length_penalty", &number, NULL, err);
}

enum status generation_fields_parse(struct generation_fields *f, const json_t *body,
                                    const struct protocol_config *config, struct arena *arena,
                                    struct api_error *err)
{
    *f = (struct generation_fields){
        .skip_special_tokens = true,
        .spaces_between_special_tokens = true,
        .return_tokens_as_token_ids = config->return_tokens_as_token_ids,
    };
    TRY(json_field_str(body, "model", &f->model, err));
    TRY(parse_sampling(&f->sampling, body, arena, err));
    TRY(parse_stream_options(f, body, config->force_include_usage, err));
    TRY(json_field_bool(body, "echo", &f->echo, NULL, err));
    TRY(json_field_bool(body, "skip_special_tokens", &f->skip_special_tokens, NULL, err));
    TRY(json_field_bool(body, "spaces_between_special_tokens", &f->spaces_between_special_tokens,
                        NULL, err));
    TRY(json_field_bool(body, "include_stop_str_in_output", &f->include_stop_str_in_output, NULL,
                        err));
    TRY(json_field_bool(body, "return_token_ids", &f->return_token_ids, NULL, err));
    TRY(json_field_bool(body, "return_prompt_text", &f->return_prompt_text, NULL, err));
    TRY(json_field_bool(body, "return_tokens_as_token_ids", &f->return_tokens_as_token_ids, NULL,
                        err));
    TRY(request_fields_parse(f, body, err));
    TRY(truncation_fields_parse(f, body, err));
    TRY(check_neutral_fields(body, err));
    return refuse_unsupported(body, err);
}
