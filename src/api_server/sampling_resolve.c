// Fields of a request → the parameters that the engine draws with: defaults, ranges, lengths.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

static const double MIN_TEMPERATURE = 0.01;    // smaller ones are raised to it
static const double GREEDY_TEMPERATURE = 1e-5; // below: the likeliest token

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
