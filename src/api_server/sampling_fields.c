// Sampling fields: how they are read, and the ranges and defaults they are checked against.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "api_server/constraint_fields.h"
#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

static const double MIN_TEMPERATURE = 0.01;    // smaller ones are raised to it
static const double GREEDY_TEMPERATURE = 1e-5; // below: the likeliest token

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

// ---- ranges ----

/** A number as messages show it: 0.0, 1.5, 100. */
struct number_text {
    char text[40];
};

static struct number_text number(double value)
{
    struct number_text out;
    struct buf buf = {0};
    buf_append_json_double(&buf, value);
    snprintf(out.text, sizeof(out.text), STR_FORMAT, STR_ARG(buf_str(&buf)));
    buf_deinit(&buf);
    return out;
}

static struct number_text integer(int64_t value)
{
    struct number_text out;
    snprintf(out.text, sizeof(out.text), "%" PRId64, value);
    return out;
}

static enum status resolve_temperature(const struct sampling_fields *f,
                                       const struct generation_config *d, struct sampling_params *p,
                                       struct api_error *err)
{
    double value = f->has_temperature ? f->temperature : d->has_temperature ? d->temperature : 1.0;
    struct number_text text = number(value);
    if (!(value >= 0))
        return api_error_param(err, "temperature", text.text,
                               "temperature must be non-negative, got %s.", text.text);
    if (value > 2)
        return api_error_param(err, "temperature", text.text,
                               "temperature must be in [0, 2], got %s.", text.text);
    if (value >= GREEDY_TEMPERATURE && value < MIN_TEMPERATURE) {
        log_warning("temperature %s is less than %.2f, which may cause numerical errors: raised "
                    "to %.2f",
                    text.text, MIN_TEMPERATURE, MIN_TEMPERATURE);
        value = MIN_TEMPERATURE;
    }
    p->temperature = value < GREEDY_TEMPERATURE ? 0 : (float)value;
    return STATUS_OK;
}

static enum status resolve_truncation(const struct sampling_fields *f,
                                      const struct generation_config *d, int32_t vocab_size,
                                      struct sampling_params *p, struct api_error *err)
{
    double top_p = f->has_top_p ? f->top_p : d->has_top_p ? d->top_p : 1.0;
    struct number_text text = number(top_p);
    if (!(top_p > 0 && top_p <= 1))
        return api_error_param(err, "top_p", text.text, "top_p must be in (0, 1], got %s.",
                               text.text);
    int64_t top_k = f->has_top_k ? f->top_k : d->has_top_k ? d->top_k : 0;
    if (top_k < -1)
        return api_error_set(err, API_ERROR_VALUE,
                             "top_k must be 0 (disable), or at least 1, got %" PRId64 ".", top_k);
    double min_p = f->has_min_p ? f->min_p : d->has_min_p ? d->min_p : 0.0;
    if (!(min_p >= 0 && min_p <= 1))
        return api_error_set(err, API_ERROR_VALUE, "min_p must be in [0, 1], got %s.",
                             number(min_p).text);
    p->top_p = (float)top_p;
    p->top_p = p->top_p > 0 ? p->top_p : 1e-30f; // a double that float cannot hold
    p->top_k = top_k <= 0 || top_k >= vocab_size ? 0 : (int32_t)top_k;
    p->min_p = (float)min_p;
    if (p->temperature == 0) {
        p->top_p = 1;
        p->top_k = 0;
        p->min_p = 0;
    }
    return STATUS_OK;
}

static enum status resolve_penalties(const struct sampling_fields *f,
                                     const struct generation_config *d, struct sampling_params *p,
                                     struct api_error *err)
{
    if (!(f->presence_penalty >= -2 && f->presence_penalty <= 2))
        return api_error_set(err, API_ERROR_VALUE, "presence_penalty must be in [-2, 2], got %s.",
                             number(f->presence_penalty).text);
    if (!(f->frequency_penalty >= -2 && f->frequency_penalty <= 2))
        return api_error_set(err, API_ERROR_VALUE, "frequency_penalty must be in [-2, 2], got %s.",
                             number(f->frequency_penalty).text);
    double repetition = f->has_repetition_penalty   ? f->repetition_penalty
                        : d->has_repetition_penalty ? d->repetition_penalty
                                                    : 1.0;
    float as_float = (float)repetition;
    if (!(repetition > 0) || !isfinite(as_float) || as_float == 0)
        return api_error_set(err, API_ERROR_VALUE,
                             "repetition_penalty must be greater than zero, got %s.",
                             number(repetition).text);
    p->presence_penalty = (float)f->presence_penalty;
    p->frequency_penalty = (float)f->frequency_penalty;
    p->repetition_penalty = as_float;
    return STATUS_OK;
}

static enum status check_logprobs(const struct protocol_config *config, int32_t requested,
                                  const char *param, const char *word, int32_t *out,
                                  struct api_error *err)
{
    *out = requested;
    if (requested == NUM_LOGPROBS_NONE)
        return STATUS_OK;
    int32_t max = config->max_logprobs == -1 ? config->vocab_size : config->max_logprobs;
    int32_t num = requested == NUM_LOGPROBS_ALL ? config->vocab_size : requested;
    if (num > max)
        return api_error_param(err, param, integer(num).text,
                               "Requested %s logprobs of %d, which is greater than max allowed: "
                               "%d",
                               word, num, max);
    *out = num;
    return STATUS_OK;
}

static enum status check_ids(const struct protocol_config *config, const char *param,
                             const int32_t *ids, int32_t num_ids, struct api_error *err)
{
    for (int32_t i = 0; i < num_ids; i++) {
        if (ids[i] >= config->vocab_size)
            return api_error_param(err, param, integer(ids[i]).text,
                                   "%s contains out-of-vocab token id %d: the vocabulary has %d "
                                   "entries.",
                                   param, ids[i], config->vocab_size);
    }
    return STATUS_OK;
}

static enum status resolve_token_lists(const struct sampling_fields *f,
                                       const struct protocol_config *config, struct arena *arena,
                                       struct sampling_params *p, struct api_error *err)
{
    for (int32_t i = 0; i < f->num_logit_bias; i++)
        TRY(check_ids(config, "logit_bias", &f->logit_bias[i].token_id, 1, err));
    p->num_logit_bias = f->num_logit_bias;
    p->logit_bias = f->logit_bias;

    if (f->has_allowed_token_ids && f->num_allowed_token_ids == 0)
        return api_error_param(err, "allowed_token_ids", "[]",
                               "allowed_token_ids is not None and empty!");
    if (f->num_allowed_token_ids > MAX_ALLOWED_TOKEN_IDS)
        return api_error_param(err, "allowed_token_ids", integer(f->num_allowed_token_ids).text,
                               "allowed_token_ids can hold at most %d ids.", MAX_ALLOWED_TOKEN_IDS);
    TRY(check_ids(config, "allowed_token_ids", f->allowed_token_ids, f->num_allowed_token_ids,
                  err));
    p->num_allowed_token_ids = f->num_allowed_token_ids;
    p->allowed_token_ids = f->allowed_token_ids;

    // The model's further end-of-sequence ids stop like stop tokens, unless they are to be ignored.
    // A constraint decides itself where the answer may end, and then it has to be able to.
    bool ignore_eos = f->ignore_eos && f->num_choices == 0;
    int32_t num_extra = ignore_eos ? 0 : config->num_extra_eos_ids;
    if (f->num_stop_token_ids > MAX_STOP_TOKEN_IDS - config->num_extra_eos_ids)
        return api_error_set(err, API_ERROR_VALUE,
                             "stop_token_ids can hold at most %d ids, got %d.",
                             MAX_STOP_TOKEN_IDS - config->num_extra_eos_ids, f->num_stop_token_ids);
    int32_t *stops = arena_array(arena, int32_t, f->num_stop_token_ids + num_extra + 1);
    memcpy(stops, f->stop_token_ids ? f->stop_token_ids : stops,
           (size_t)f->num_stop_token_ids * sizeof(*stops));
    memcpy(stops + f->num_stop_token_ids, config->extra_eos_ids ? config->extra_eos_ids : stops,
           (size_t)num_extra * sizeof(*stops));
    p->num_stop_token_ids = f->num_stop_token_ids + num_extra;
    p->stop_token_ids = stops;
    p->eos_token_id = ignore_eos ? -1 : config->eos_token_id;
    return STATUS_OK;
}

static enum status resolve_lengths(const struct sampling_fields *f,
                                   const struct protocol_config *config, int32_t num_prompt_tokens,
                                   int32_t max_model_len, bool max_tokens_zero,
                                   struct sampling_params *p, struct api_error *err)
{
    const struct generation_config *d = &config->defaults;
    int64_t room = (int64_t)max_model_len - num_prompt_tokens;
    int64_t max_tokens = room;
    if (f->has_max_tokens)
        max_tokens = f->max_tokens;
    else if (f->default_max_tokens > 0)
        max_tokens = f->default_max_tokens;
    else if (d->has_max_new_tokens)
        max_tokens = d->max_new_tokens;
    if (d->has_max_new_tokens && d->max_new_tokens_is_cap)
        max_tokens = min_i64(max_tokens, d->max_new_tokens);
    if (max_tokens < 1 && !(max_tokens == 0 && max_tokens_zero))
        return api_error_param(err, f->has_max_tokens ? f->max_tokens_field : "max_tokens",
                               integer(max_tokens).text,
                               "max_tokens must be at least 1, got %" PRId64 ".", max_tokens);
    max_tokens = min_i64(max_tokens, room);
    if (f->min_tokens < 0)
        return api_error_set(err, API_ERROR_VALUE,
                             "min_tokens must be greater than or equal to 0, got %" PRId64 ".",
                             f->min_tokens);
    if (f->min_tokens > max_tokens)
        return api_error_set(err, API_ERROR_VALUE,
                             "min_tokens must be less than or equal to max_tokens=%" PRId64
                             ", got %" PRId64 ".",
                             max_tokens, f->min_tokens);
    p->max_tokens = (int32_t)max_i64(max_tokens, 1);
    p->min_tokens = (int32_t)f->min_tokens;
    return STATUS_OK;
}

enum status sampling_resolve(const struct sampling_fields *f, const struct protocol_config *config,
                             int32_t num_prompt_tokens, int32_t max_model_len, bool max_tokens_zero,
                             struct arena *arena, struct sampling_params *p, struct api_error *err)
{
    *p = (struct sampling_params){0};
    if (f->n < 1)
        return api_error_set(err, API_ERROR_VALUE, "n must be at least 1, got %" PRId64 ".", f->n);
    if (f->n > MAX_CHOICES)
        return api_error_set(err, API_ERROR_VALUE, "n must be at most %d, got %" PRId64 ".",
                             MAX_CHOICES, f->n);
    TRY(resolve_penalties(f, &config->defaults, p, err));
    TRY(resolve_temperature(f, &config->defaults, p, err));
    TRY(resolve_truncation(f, &config->defaults, config->vocab_size, p, err));
    TRY(resolve_lengths(f, config, num_prompt_tokens, max_model_len, max_tokens_zero, p, err));
    TRY(check_logprobs(config, f->num_logprobs, "logprobs", "sample", &p->num_logprobs, err));
    TRY(check_logprobs(config, f->num_prompt_logprobs, "prompt_logprobs", "prompt",
                       &p->num_prompt_logprobs, err));
    for (int32_t i = 0; i < f->num_stop; i++) {
        if (f->stop[i].len == 0)
            return api_error_set(err, API_ERROR_VALUE, "stop cannot contain an empty string.");
    }
    TRY(resolve_token_lists(f, config, arena, p, err));
    if (p->temperature == 0 && f->n > 1)
        return api_error_set(err, API_ERROR_VALUE,
                             "n must be 1 when using greedy sampling, got %" PRId64 ".", f->n);
    p->seed = f->has_seed ? (uint64_t)f->seed : random_u64();
    return STATUS_OK;
}

int64_t sampling_requested_output(const struct sampling_fields *f)
{
    return f->has_max_tokens ? f->max_tokens : f->default_max_tokens;
}

enum status prompt_length_check(const struct sampling_fields *f, int32_t num_prompt_tokens,
                                int32_t max_model_len, struct api_error *err)
{
    if (num_prompt_tokens == 0)
        return api_error_set(err, API_ERROR_VALUE, "The decoder prompt cannot be empty");
    int64_t output = max_i64(sampling_requested_output(f), 0);
    if (output > max_model_len)
        return api_error_param(err, f->max_tokens_field, integer(output).text,
                               "%s=%" PRId64 " cannot be greater than max_model_len="
                               "max_total_tokens=%d. Please request fewer output tokens.",
                               f->max_tokens_field, output, max_model_len);
    if (num_prompt_tokens + output > max_model_len)
        return api_error_param(
            err, "input_tokens", integer(num_prompt_tokens).text,
            "This model's maximum context length is %d tokens. However, you requested %" PRId64
            " output tokens and your prompt contains %d input tokens, for a total of %" PRId64
            " tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
            max_model_len, output, num_prompt_tokens, num_prompt_tokens + output);
    if (num_prompt_tokens >= max_model_len)
        return api_error_set(
            err, API_ERROR_VALUE,
            "The decoder prompt (length %d) plus the number of requested output tokens (at least "
            "1) is longer than the maximum model length of %d. Make sure that `max_model_len` is "
            "no smaller than the number of text tokens (prompt + requested output tokens).",
            num_prompt_tokens, max_model_len);
    return STATUS_OK;
}
