// Bodies → request structs: every field, its coercions and its errors.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api_server/chat_messages.h"
#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/memory.h"

static const int32_t extra_eos[] = {7};
static const struct protocol_config config = {
    .vocab_size = 1000,
    .max_logprobs = 20,
    .eos_token_id = 2,
    .num_extra_eos_ids = 1,
    .extra_eos_ids = extra_eos,
};

enum { MAX_MODEL_LEN = 128, NUM_PROMPT_TOKENS = 10 };

/** Everything that happens to one body, up to what the engine is given. */
struct outcome {
    enum status status;
    struct api_error err;
    struct generation_fields *fields;
    struct chat_request chat;
    struct completion_request completion;
    struct sampling_params sampling;
    struct arena arena;
    json_t *body;
};

static enum status run(struct outcome *o, const char *text, bool chat,
                       const struct protocol_config *with)
{
    struct api_error *err = &o->err;
    TRY(json_body_parse(&o->body, str_from(text), err));
    if (chat) {
        o->fields = &o->chat.common;
        TRY(chat_request_parse(&o->chat, o->body, with, &o->arena, err));
        json_t *messages;
        TRY(chat_messages_normalize(&messages, o->chat.messages, false, err));
        json_decref(messages);
    } else {
        o->fields = &o->completion.common;
        TRY(completion_request_parse(&o->completion, o->body, with, &o->arena, err));
    }
    TRY(prompt_length_check(&o->fields->sampling, NUM_PROMPT_TOKENS, MAX_MODEL_LEN, err));
    return sampling_resolve(&o->fields->sampling, with, NUM_PROMPT_TOKENS, MAX_MODEL_LEN,
                            o->fields->echo && !chat, &o->arena, &o->sampling, err);
}

static struct outcome *evaluate(const char *text, bool chat)
{
    struct outcome *o = xcalloc(1, sizeof(*o));
    o->status = run(o, text, chat, &config);
    return o;
}

static void outcome_free(struct outcome *o)
{
    json_decref(o->body);
    arena_deinit(&o->arena);
    free(o);
}

/** "{...}" of a completion with `fields` added. */
static struct outcome *completion(const char *fields)
{
    char body[1024];
    snprintf(body, sizeof(body), "{\"model\":\"m\",\"prompt\":\"x\"%s%s}", fields[0] ? "," : "",
             fields);
    return evaluate(body, false);
}

static struct outcome *chat(const char *fields)
{
    char body[2048];
    snprintf(body, sizeof(body),
             "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
             fields[0] ? "," : "", fields);
    return evaluate(body, true);
}

// ---- errors, by table ----

struct refusal {
    const char *fields;  // or a whole body
    const char *param;   // "" for null
    const char *message; // a part of it
    enum api_error_kind kind;
};

static void check_refusals(const struct refusal *rows, size_t count,
                           struct outcome *(*make)(const char *fields))
{
    for (size_t i = 0; i < count; i++) {
        struct outcome *o = make(rows[i].fields);
        if (o->status == STATUS_OK)
            fail_msg("%s was accepted", rows[i].fields);
        if (!strstr(o->err.message, rows[i].message))
            fail_msg("%s: expected \"%s\" in \"%s\"", rows[i].fields, rows[i].message,
                     o->err.message);
        if (strcmp(o->err.param, rows[i].param) != 0)
            fail_msg("%s: expected param \"%s\", got \"%s\"", rows[i].fields, rows[i].param,
                     o->err.param);
        if (o->err.kind != rows[i].kind)
            fail_msg("%s: expected kind %d, got %d (%s)", rows[i].fields, rows[i].kind, o->err.kind,
                     o->err.message);
        outcome_free(o);
    }
}

#define VALUE API_ERROR_VALUE
#define SCHEMA API_ERROR_SCHEMA

static void values_out_of_range_are_refused_with_field_and_value(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"\"top_p\":0", "top_p", "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)",
         VALUE},
        {"\"top_p\":1.0001", "top_p", "got 1.0001.", VALUE},
        {"\"top_p\":-0.1", "top_p", "top_p must be in (0, 1], got -0.1.", VALUE},
        {"\"temperature\":-1", "temperature", "temperature must be non-negative, got -1.0. (param",
         VALUE},
        {"\"temperature\":2.5", "temperature", "temperature must be in [0, 2], got 2.5.", VALUE},
        {"\"top_k\":-2", "", "top_k must be 0 (disable), or at least 1, got -2.", VALUE},
        {"\"min_p\":1.1", "", "min_p must be in [0, 1], got 1.1.", VALUE},
        {"\"presence_penalty\":2.01", "", "presence_penalty must be in [-2, 2], got 2.01.", VALUE},
        {"\"frequency_penalty\":-2.5", "", "frequency_penalty must be in [-2, 2], got", VALUE},
        {"\"repetition_penalty\":0", "", "repetition_penalty must be greater than zero, got 0.0.",
         VALUE},
        {"\"repetition_penalty\":-1", "", "must be greater than zero", VALUE},
        {"\"repetition_penalty\":1e300", "", "must be greater than zero", VALUE},
        {"\"n\":0", "", "n must be at least 1, got 0.", VALUE},
        {"\"n\":-1", "", "n must be at least 1, got -1.", VALUE},
        {"\"n\":1000000", "", "n must be at most 16384, got 1000000.", VALUE},
        {"\"n\":2,\"temperature\":0", "", "n must be 1 when using greedy sampling, got 2.", VALUE},
        {"\"max_tokens\":0", "max_tokens",
         "max_tokens must be at least 1, got 0. (parameter=", VALUE},
        {"\"max_tokens\":-1", "max_tokens", "max_tokens must be at least 1, got -1.", VALUE},
        {"\"max_tokens\":129", "max_tokens", "max_tokens=129 cannot be greater than max_model_len",
         VALUE},
        {"\"max_tokens\":120", "input_tokens",
         "maximum context length is 128 tokens. However, you requested 120 output tokens and your "
         "prompt contains 10 input tokens, for a total of 130 tokens.",
         VALUE},
        {"\"min_tokens\":9,\"max_tokens\":8", "",
         "min_tokens must be less than or equal to max_tokens=8, got 9.", VALUE},
        {"\"min_tokens\":-1", "", "min_tokens must be greater than or equal to 0, got -1.", VALUE},
        {"\"stop\":\"\"", "", "stop cannot contain an empty string.", VALUE},
        {"\"stop\":[\"a\",\"\"]", "", "stop cannot contain an empty string.", VALUE},
        {"\"logprobs\":21", "logprobs",
         "Requested sample logprobs of 21, which is greater than max allowed: 20", VALUE},
        {"\"prompt_logprobs\":-1", "prompt_logprobs",
         "Requested prompt logprobs of 1000, which is greater than max allowed: 20", VALUE},
        {"\"logit_bias\":{\"1000\":1}", "logit_bias", "out-of-vocab token id 1000", VALUE},
        {"\"logit_bias\":{\"x\":1}", "logit_bias", "logit_bias keys must be token ids", VALUE},
        {"\"allowed_token_ids\":[]", "allowed_token_ids", "not None and empty", VALUE},
        {"\"allowed_token_ids\":[1000]", "allowed_token_ids", "out-of-vocab", VALUE},
    };
    check_refusals(rows, ARRAY_LEN(rows), completion);
}

static void ill_typed_fields_are_refused_with_their_path(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"\"n\":1.5", "body.n", "'type': 'int_from_float'", SCHEMA},
        {"\"top_k\":1.5", "body.top_k", "got a number with a fractional part", SCHEMA},
        {"\"top_k\":\"x\"", "body.top_k", "'type': 'int_parsing'", SCHEMA},
        {"\"seed\":1.5", "body.seed", "valid integer", SCHEMA},
        {"\"seed\":9223372036854775808", "body.seed", "`seed` is out of range", SCHEMA},
        {"\"max_tokens\":99999999999999999999", "body.max_tokens", "out of range", SCHEMA},
        {"\"max_tokens\":2.5", "body.max_tokens", "fractional", SCHEMA},
        {"\"repetition_penalty\":1e999", "body.repetition_penalty", "out of range", SCHEMA},
        {"\"temperature\":[]", "body.temperature", "'input': '<list of 0 items>'", SCHEMA},
        {"\"temperature\":\"nan\"", "body.temperature", "valid number", SCHEMA},
        {"\"temperature\":NaN", "body.temperature", "in the value of `temperature`", SCHEMA},
        {"\"top_p\":-Infinity", "body.top_p", "in the value of `top_p`", SCHEMA},
        {"\"stream\":\"maybe\"", "body.stream", "'type': 'bool_type'", SCHEMA},
        {"\"stream\":2", "body.stream", "valid boolean", SCHEMA},
        {"\"stop\":5", "body.stop", "a valid string or a list of strings", SCHEMA},
        {"\"stop\":[\"a\",5]", "body.stop.1", "valid string", SCHEMA},
        {"\"stop_token_ids\":{}", "body.stop_token_ids", "valid list", SCHEMA},
        {"\"stop_token_ids\":[-1]", "body.stop_token_ids.0", "out of vocabulary", SCHEMA},
        {"\"logit_bias\":[]", "body.logit_bias", "valid dictionary", SCHEMA},
        {"\"model\":5", "body.model", "valid string", SCHEMA},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options",
         "Value error, Stream options can only be defined when `stream=True`. "
         "(parameter=stream_options)",
         SCHEMA},
        {"\"cache_salt\":\"\"", "cache_salt", "must be a non-empty string if provided", SCHEMA},
        {"\"truncate_prompt_tokens\":-2", "body.truncate_prompt_tokens", "-1", SCHEMA},
        {"\"truncation_side\":\"up\"", "body.truncation_side", "'left' or 'right'", SCHEMA},
        {"\"suffix\":\"s\"", "suffix", "suffix is not currently supported", SCHEMA},
        {"\"logprobs\":-1", "logprobs", "`logprobs` must be a positive value", SCHEMA},
        {"\"prompt_logprobs\":-2", "prompt_logprobs", "positive value or -1", SCHEMA},
        {"\"stream\":true,\"prompt_logprobs\":1", "prompt_logprobs",
         "`prompt_logprobs` are not available when `stream=True`.", SCHEMA},
        {"\"prompt\":[]", "prompt", "must be provided and non-empty", SCHEMA},
        {"\"prompt\":null", "prompt", "must be provided and non-empty", SCHEMA},
        {"\"prompt\":5", "body.prompt", "a string, a list of token ids", SCHEMA},
        {"\"prompt\":[1,\"a\"]", "body.prompt.1", "valid integer", SCHEMA},
        {"\"prompt\":[[1],{}]", "body.prompt.1", "a string, a list of token ids", SCHEMA},
        {"\"prompt\":[-5]", "body.prompt.0", "out of vocabulary", SCHEMA},
        {"\"structured_outputs\":{}", "structured_outputs", "none are specified", SCHEMA},
        {"\"structured_outputs\":{\"json_object\":false}", "structured_outputs",
         "none are specified", SCHEMA},
        {"\"structured_outputs\":{\"choice\":[\"a\"],\"regex\":\"a\"}", "structured_outputs",
         "only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')",
         SCHEMA},
        {"\"structured_outputs\":{\"choice\":[\"a\"],\"grammar\":\"a\"}", "structured_outputs",
         "multiple are specified", SCHEMA},
        {"\"structured_outputs\":{\"choice\":[]}", "structured_outputs", "cannot be empty", SCHEMA},
        {"\"structured_outputs\":{\"choice\":\"a\"}", "body.choice", "valid list", SCHEMA},
        {"\"structured_outputs\":{\"choice\":[1]}", "body.structured_outputs.choice.0",
         "valid string", SCHEMA},
        {"\"structured_outputs\":[]", "body.structured_outputs", "valid dictionary", SCHEMA},
        {"\"bad_words\":[1]", "body.bad_words.0", "valid string", SCHEMA},
        {"\"logprob_token_ids\":[1]", "logprob_token_ids", "`logprobs` must be set", SCHEMA},
        {"\"repetition_detection\":{\"max_pattern_size\":2,\"min_count\":1}",
         "repetition_detection", "min_count must be in [2, 4096], got 1", SCHEMA},
        {"\"repetition_detection\":{\"max_pattern_size\":2,\"min_pattern_size\":3,"
         "\"min_count\":2}",
         "repetition_detection", "got 3 and 2", SCHEMA},
    };
    check_refusals(rows, ARRAY_LEN(rows), completion);
}

static void features_that_are_missing_are_refused_by_name(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"\"use_beam_search\":true", "use_beam_search",
         "vllm.c does not support `use_beam_search` yet", VALUE},
        {"\"structured_outputs\":{\"regex\":\"a\"}", "structured_outputs.regex", "does not support",
         VALUE},
        {"\"structured_outputs\":{\"json\":{}}", "structured_outputs.json", "does not support",
         VALUE},
        {"\"structured_outputs\":{\"grammar\":\"root ::= \\\"a\\\"\"}",
         "structured_outputs.grammar", "does not support", VALUE},
        {"\"structured_outputs\":{\"json_object\":true}", "structured_outputs.json_object",
         "does not support", VALUE},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format", "does not support",
         VALUE},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format",
         "the 'json_schema' field must be provided", SCHEMA},
        {"\"response_format\":{\"type\":\"xml\"}", "body.response_format.type", "json_object",
         SCHEMA},
        {"\"thinking_token_budget\":5", "thinking_token_budget", "does not support", VALUE},
        {"\"kv_transfer_params\":{\"a\":1}", "kv_transfer_params", "does not support", VALUE},
        {"\"vllm_xargs\":{\"a\":1}", "vllm_xargs", "does not support", VALUE},
        {"\"prompt_embeds\":\"AAAA\"", "prompt_embeds", "does not support", VALUE},
    };
    check_refusals(rows, ARRAY_LEN(rows), completion);
    check_refusals(rows, ARRAY_LEN(rows), chat);
}

static void chat_bodies_that_contradict_themselves_are_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"\"top_logprobs\":2", "top_logprobs",
         "when using `top_logprobs`, `logprobs` must be set to true.", SCHEMA},
        {"\"logprobs\":true,\"top_logprobs\":-2", "top_logprobs", "positive value or -1", SCHEMA},
        {"\"logprobs\":true,\"top_logprobs\":21", "logprobs", "Requested sample logprobs of 21",
         VALUE},
        {"\"tools\":[]", "tools", "`tools` must not be an empty array.", SCHEMA},
        {"\"tool_choice\":\"auto\"", "tool_choice",
         "When using `tool_choice`, `tools` must be set.", SCHEMA},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", "",
         "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser", VALUE},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
         "\"tool_choice\":\"required\"",
         "", "tool_choice=\"required\" requires --tool-call-parser to be set", VALUE},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
         "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}",
         "tool_choice", "does not match any of the specified `tools`", SCHEMA},
        {"\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\"", "body.tools.0.function",
         "Field required", SCHEMA},
        {"\"add_generation_prompt\":true,\"continue_final_message\":true", "",
         "Cannot set both `continue_final_message` and `add_generation_prompt` to True.", SCHEMA},
        {"\"chat_template\":\"x\"", "", "Refused request with untrusted chat template.", VALUE},
        {"\"chat_template_kwargs\":{\"chat_template\":\"x\"}", "", "untrusted chat template",
         VALUE},
        {"\"reasoning_effort\":\"huge\"", "body.reasoning_effort", "'minimal'", SCHEMA},
        {"\"max_completion_tokens\":0,\"max_tokens\":5", "max_completion_tokens",
         "max_tokens must be at least 1, got 0.", VALUE},
        {"\"messages\":null", "body.messages",
         "'type': 'missing', 'loc': 'body.messages', 'msg': "
         "'Field required'",
         SCHEMA},
        {"\"messages\":5", "body.messages", "valid list", SCHEMA},
        {"\"messages\":[5]", "body.messages.0", "valid dictionary", SCHEMA},
        {"\"messages\":[{\"content\":\"x\"}]", "body.messages.0.role", "Field required", SCHEMA},
        {"\"messages\":[{\"role\":\"user\",\"content\":5}]", "body.messages.0.content",
         "list of content parts", SCHEMA},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"odd\"}]}]",
         "body.messages.0.content.0", "Unknown content part type `odd`", SCHEMA},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
         "body.messages.0.content.0", "needs a string `text`", SCHEMA},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
         "\"image_url\":{\"url\":\"x\"}}]}]",
         "messages", "vllm.c does not support `messages[0].content[0]: image_url` yet", VALUE},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"[1]\"}}]}]",
         "body.messages.0.tool_calls.0.function.arguments", "should be a JSON object", SCHEMA},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\":\"}}]}]",
         "", "messages[0].tool_calls.0.function.arguments is not valid JSON", VALUE},
    };
    check_refusals(rows, ARRAY_LEN(rows), chat);
}

static struct outcome *raw_completion(const char *body)
{
    return evaluate(body, false);
}

static void bodies_that_are_no_json_object_are_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"", "body.0", "'type': 'json_invalid'", SCHEMA},
        {"null", "body", "valid dictionary", SCHEMA},
        {"[]", "body", "'input': '<list of 0 items>'", SCHEMA},
        {"\"x\"", "body", "valid dictionary", SCHEMA},
        {"5", "body", "valid dictionary", SCHEMA},
        {"{\"prompt\":\"a\"}{}", "body.15", "at byte 15", SCHEMA},
        {"{\"prompt\":\"a\",}", "body.15", "JSON decode error", SCHEMA},
        {"{\"prompt\":\"\xff\xfe\"}", "body.11", "not UTF-8 at byte 11", SCHEMA},
        {"{\"prompt\":\"\\ud83e\"}", "body.17", "JSON decode error", SCHEMA},
        {"{\"prompt\":Infinity}", "body.11", "JSON decode error", SCHEMA},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct outcome *o = raw_completion(rows[i].fields);
        assert_int_not_equal(o->status, STATUS_OK);
        if (!strstr(o->err.message, rows[i].message))
            fail_msg("%s: %s", rows[i].fields, o->err.message);
        assert_int_equal(o->err.kind, rows[i].kind);
        assert_non_null(strstr(o->err.param, "body"));
        outcome_free(o);
    }
}

static void deep_nesting_is_refused_and_names_the_limit(void **state)
{
    (void)state;
    static const size_t depths[] = {513, 2000, 200000};
    for (size_t d = 0; d < ARRAY_LEN(depths); d++) {
        for (int closed = 0; closed < 2; closed++) {
            struct buf body = {0};
            for (size_t i = 0; i < depths[d]; i++)
                buf_append_char(&body, '[');
            for (size_t i = 0; closed && i < depths[d]; i++)
                buf_append_char(&body, ']');
            json_t *json;
            struct api_error err;
            assert_int_equal(json_body_parse(&json, buf_str(&body), &err), STATUS_INVALID);
            assert_non_null(strstr(err.message, "limit of 512 levels"));
            buf_deinit(&body);
        }
    }
}

static void brackets_in_strings_do_not_count_as_depth(void **state)
{
    (void)state;
    struct buf body = {0};
    buf_append_c(&body, "{\"prompt\":\"\\\"");
    for (int i = 0; i < 5000; i++)
        buf_append_char(&body, '[');
    buf_append_c(&body, "\"}");
    json_t *json;
    struct api_error err;
    assert_int_equal(json_body_parse(&json, buf_str(&body), &err), STATUS_OK);
    json_decref(json);
    buf_deinit(&body);
}

static void errors_never_echo_megabytes(void **state)
{
    (void)state;
    struct buf body = {0};
    buf_append_c(&body, "{\"prompt\":{\"k\":\"");
    for (int i = 0; i < 1000000; i++)
        buf_append_c(&body, "x");
    buf_append_c(&body, "\"},\"top_k\":\"");
    for (int i = 0; i < 1000000; i++)
        buf_append_c(&body, "y");
    buf_append_c(&body, "\"}");
    buf_append_char(&body, '\0');
    struct outcome *o = raw_completion(body.ptr);
    struct buf text = {0};
    api_error_write(&text, &o->err);
    assert_true(text.len < 3000);
    buf_deinit(&text);
    outcome_free(o);
    buf_deinit(&body);
}

// ---- what is accepted ----

static void values_that_mean_off_are_accepted(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "",
        "\"use_beam_search\":false,\"structured_outputs\":null,\"bad_words\":[],\"best_of\":3",
        "\"response_format\":{\"type\":\"text\"},\"thinking_token_budget\":-1",
        "\"top_k\":-1,\"min_p\":0,\"seed\":-1",
        "\"top_k\":1000000000,\"min_p\":1,\"top_p\":1",
        "\"presence_penalty\":2,\"frequency_penalty\":-2,\"repetition_penalty\":0.001",
        "\"temperature\":null,\"top_p\":null,\"n\":null,\"stop\":null,\"stream_options\":null",
        "\"n\":\"2\",\"top_k\":5.0,\"temperature\":\"0.5\",\"echo\":\"true\"",
        "\"guided_json\":{},\"user\":\"u\",\"unknown\":[[]],\"metadata\":{\"a\":1}",
        "\"stream\":true,\"stream_options\":{},\"prompt_logprobs\":0",
        "\"seed\":9223372036854775807,\"priority\":-5",
        "\"structured_outputs\":{\"choice\":[\"a\",\"\"],\"json\":null,\"json_object\":false}",
        "\"bad_words\":[\"x\",\" y\"],\"logprob_token_ids\":[]",
        "\"repetition_detection\":{}",
        "\"repetition_detection\":{\"max_pattern_size\":20,\"min_count\":3}",
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct outcome *o = completion(rows[i]);
        if (o->status != STATUS_OK)
            fail_msg("%s: %s", rows[i], o->err.message);
        outcome_free(o);
        o = chat(rows[i]);
        if (o->status != STATUS_OK)
            fail_msg("chat %s: %s", rows[i], o->err.message);
        outcome_free(o);
    }
}

static void sampling_params_are_what_was_asked_for(void **state)
{
    (void)state;
    struct outcome *o = completion("\"temperature\":0.5,\"top_p\":0.9,\"top_k\":5,\"min_p\":0.1,"
                                   "\"seed\":7,\"max_tokens\":20,\"min_tokens\":3,"
                                   "\"stop_token_ids\":[5,6],\"logit_bias\":{\"3\":200,\"4\":-1},"
                                   "\"allowed_token_ids\":[1,2,3],\"logprobs\":2,\"echo\":true");
    assert_int_equal(o->status, STATUS_OK);
    const struct sampling_params *p = &o->sampling;
    assert_true(p->temperature == 0.5f && p->top_p == 0.9f && p->min_p == 0.1f);
    assert_int_equal(p->top_k, 5);
    assert_int_equal(p->seed, 7);
    assert_int_equal(p->max_tokens, 20);
    assert_int_equal(p->min_tokens, 3);
    assert_int_equal(p->eos_token_id, 2);
    assert_int_equal(p->num_stop_token_ids, 3); // the model's further one as well
    assert_int_equal(p->stop_token_ids[2], 7);
    assert_int_equal(p->num_logit_bias, 2);
    assert_true(p->logit_bias[0].token_id == 3 && p->logit_bias[0].bias == 100);
    assert_int_equal(p->num_allowed_token_ids, 3);
    assert_int_equal(p->num_logprobs, 2);
    assert_int_equal(p->num_prompt_logprobs, 2); // echo scores the prompt too
    outcome_free(o);
}

static void greedy_and_tiny_temperatures_are_normalised(void **state)
{
    (void)state;
    struct outcome *o = completion("\"temperature\":0.000001,\"top_p\":0.5,\"top_k\":3");
    assert_true(o->sampling.temperature == 0 && o->sampling.top_p == 1 && o->sampling.top_k == 0);
    outcome_free(o);
    o = completion("\"temperature\":0.001");
    assert_true(o->sampling.temperature == 0.01f);
    outcome_free(o);
}

static void ignoring_eos_leaves_only_the_requests_stop_tokens(void **state)
{
    (void)state;
    struct outcome *o = completion("\"ignore_eos\":true,\"stop_token_ids\":[9]");
    assert_int_equal(o->sampling.eos_token_id, -1);
    assert_int_equal(o->sampling.num_stop_token_ids, 1);
    outcome_free(o);
}

static void output_limits_follow_their_order(void **state)
{
    (void)state;
    struct outcome *o = completion("");
    assert_int_equal(o->sampling.max_tokens, 16);
    outcome_free(o);
    o = chat("");
    assert_int_equal(o->sampling.max_tokens, MAX_MODEL_LEN - NUM_PROMPT_TOKENS);
    outcome_free(o);
    o = chat("\"max_tokens\":8,\"max_completion_tokens\":3");
    assert_int_equal(o->sampling.max_tokens, 3);
    outcome_free(o);
    o = completion("\"max_tokens\":0,\"echo\":true");
    assert_int_equal(o->status, STATUS_OK);
    assert_int_equal(o->sampling.max_tokens, 1);
    outcome_free(o);
}

static void defaults_of_the_model_yield_to_the_request(void **state)
{
    (void)state;
    struct protocol_config with = config;
    with.defaults = (struct generation_config){.has_temperature = true,
                                               .temperature = 0.6,
                                               .has_top_k = true,
                                               .top_k = 20,
                                               .has_max_new_tokens = true,
                                               .max_new_tokens = 32};
    static const char *const messages = "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]";
    const struct {
        const char *fields;
        float temperature;
        int32_t top_k, max_tokens;
        bool cap;
    } rows[] = {
        {"", 0.6f, 20, 32, false},
        {",\"temperature\":1", 1, 20, 32, false},
        {",\"temperature\":null", 0.6f, 20, 32, false},
        {",\"max_tokens\":64", 0.6f, 20, 64, false},
        {",\"max_tokens\":64", 0.6f, 20, 32, true},
        {",\"top_k\":-1", 0.6f, 0, 32, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct outcome *o = xcalloc(1, sizeof(*o));
        char body[256];
        snprintf(body, sizeof(body), "{%s%s}", messages, rows[i].fields);
        with.defaults.max_new_tokens_is_cap = rows[i].cap;
        assert_int_equal(run(o, body, true, &with), STATUS_OK);
        assert_true(o->sampling.temperature == rows[i].temperature);
        assert_int_equal(o->sampling.top_k, rows[i].top_k);
        assert_int_equal(o->sampling.max_tokens, rows[i].max_tokens);
        outcome_free(o);
    }
}

static void prompts_come_in_four_shapes(void **state)
{
    (void)state;
    const struct {
        const char *prompt;
        int32_t num_prompts, num_ids; // of the first
    } rows[] = {
        {"\"abc\"", 1, 0},     {"[\"a\",\"b\",\"\"]", 3, 0}, {"[1,2,3]", 1, 3},
        {"[[1,2],[3]]", 2, 2}, {"[[1],\"b\"]", 2, 1},        {"\"a\\u0000b\"", 1, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":%s}", rows[i].prompt);
        struct outcome *o = evaluate(body, false);
        assert_int_equal(o->status, STATUS_OK);
        assert_int_equal(o->completion.num_prompts, rows[i].num_prompts);
        assert_int_equal(o->completion.prompts[0].num_ids, rows[i].num_ids);
        if (rows[i].num_ids == 0)
            assert_non_null(o->completion.prompts[0].text.ptr);
        outcome_free(o);
    }
    struct outcome *o = evaluate("{\"prompt\":\"a\\u0000b\"}", false);
    assert_int_equal(o->completion.prompts[0].text.len, 3);
    outcome_free(o);
}

static void usage_is_streamed_only_when_asked_for(void **state)
{
    (void)state;
    const struct {
        const char *options;
        bool usage, continuous;
    } rows[] = {
        {"null", false, false},
        {"{}", false, false},
        {"{\"include_usage\":false}", false, false},
        {"{\"include_usage\":true}", true, false},
        {"{\"continuous_usage_stats\":true}", false, false},
        {"{\"include_usage\":true,\"continuous_usage_stats\":true}", true, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char fields[128];
        snprintf(fields, sizeof(fields), "\"stream\":true,\"stream_options\":%s", rows[i].options);
        struct outcome *o = chat(fields);
        assert_int_equal(o->status, STATUS_OK);
        assert_int_equal(o->fields->include_usage, rows[i].usage);
        assert_int_equal(o->fields->continuous_usage, rows[i].continuous);
        outcome_free(o);
    }
}

/** Normalised messages as JSON text. */
static char *normalize(const char *messages, bool as_parts)
{
    json_t *in, *out;
    struct api_error err;
    assert_int_equal(json_body_parse(&in, str_from(messages), &err), STATUS_OK);
    if (chat_messages_normalize(&out, in, as_parts, &err) != STATUS_OK)
        fail_msg("%s: %s", messages, err.message);
    char *text = json_dumps(out, JSON_COMPACT);
    json_decref(in);
    json_decref(out);
    return text;
}

static void messages_reach_the_template_in_one_shape(void **state)
{
    (void)state;
    const struct {
        const char *in;
        bool as_parts;
        const char *out;
    } rows[] = {
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"red\"},{\"type\":\"text\","
         "\"text\":\"green\"}]}]",
         false, "[{\"role\":\"user\",\"content\":\"red\\ngreen\"}]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"red\"},\"green\"]}]", true,
         "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"red\"},{\"type\":\"text\","
         "\"text\":\"green\"}]}]"},
        {"[{\"role\":\"user\",\"content\":\"a\"}]", true,
         "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]"},
        {"[{\"role\":\"user\",\"content\":[]}]", false, "[{\"role\":\"user\",\"content\":\"\"}]"},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}]", false,
         "[{\"role\":\"assistant\",\"content\":\"\"}]"},
        {"[{\"role\":\"assistant\",\"reasoning_content\":\"r\"}]", false,
         "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"r\",\"reasoning_content\":"
         "\"r\"}]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
         "\"function\":{\"name\":\"w\",\"arguments\":\"{\\\"b\\\": 1, \\\"a\\\": 1.0}\"}}]}]",
         false,
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"type\":"
         "\"function\",\"function\":{\"name\":\"w\",\"arguments\":{\"b\":1,\"a\":1.0}}}]}]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"w\",\"arguments\":"
         "null}}]}]",
         false,
         "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"w\","
         "\"arguments\":{}}}]}]"},
        {"[{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"4\",\"other\":1}]", false,
         "[{\"role\":\"tool\",\"content\":\"4\",\"tool_call_id\":\"c\"}]"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *text = normalize(rows[i].in, rows[i].as_parts);
        assert_string_equal(text, rows[i].out);
        free(text);
    }
}

static void null_absent_and_empty_content_are_the_same(void **state)
{
    (void)state;
    for (int as_parts = 0; as_parts < 2; as_parts++) {
        char *a = normalize("[{\"role\":\"assistant\",\"content\":null}]", as_parts);
        char *b = normalize("[{\"role\":\"assistant\"}]", as_parts);
        char *c = normalize("[{\"role\":\"assistant\",\"content\":\"\"}]", as_parts);
        char *d = normalize("[{\"role\":\"assistant\",\"content\":[]}]", as_parts);
        assert_string_equal(a, b);
        assert_string_equal(a, c);
        assert_string_equal(a, d);
        free(a), free(b), free(c), free(d);
    }
}

static void error_objects_have_the_agreed_shape(void **state)
{
    (void)state;
    const struct {
        enum api_error_kind kind;
        const char *json;
    } rows[] = {
        {API_ERROR_SCHEMA, "{\"error\":{\"message\":\"m\\n\\\"x\",\"type\":\"Bad Request\","
                           "\"param\":null,\"code\":400}}"},
        {API_ERROR_VALUE, "{\"error\":{\"message\":\"m\\n\\\"x\",\"type\":\"BadRequestError\","
                          "\"param\":null,\"code\":400}}"},
        {API_ERROR_NOT_FOUND, "{\"error\":{\"message\":\"m\\n\\\"x\",\"type\":\"NotFoundError\","
                              "\"param\":null,\"code\":404}}"},
        {API_ERROR_METHOD, "{\"error\":{\"message\":\"m\\n\\\"x\",\"type\":\"Method Not Allowed\","
                           "\"param\":null,\"code\":405}}"},
        {API_ERROR_UNSUPPORTED, "{\"error\":{\"message\":\"m\\n\\\"x\",\"type\":"
                                "\"NotImplementedError\",\"param\":null,\"code\":501}}"},
        {API_ERROR_OVERLOADED, "{\"error\":{\"message\":\"m\\n\\\"x\",\"type\":"
                               "\"Service Unavailable\",\"param\":null,\"code\":503}}"},
        {API_ERROR_INTERNAL, "{\"error\":{\"message\":\"m\\n\\\"x\",\"type\":"
                             "\"InternalServerError\",\"param\":null,\"code\":500}}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct api_error err;
        struct buf out = {0};
        api_error_set(&err, rows[i].kind, "m\n\"x");
        api_error_write(&out, &err);
        assert_int_equal(out.len, strlen(rows[i].json));
        assert_memory_equal(out.ptr, rows[i].json, out.len);
        buf_deinit(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_out_of_range_are_refused_with_field_and_value),
        cmocka_unit_test(ill_typed_fields_are_refused_with_their_path),
        cmocka_unit_test(features_that_are_missing_are_refused_by_name),
        cmocka_unit_test(chat_bodies_that_contradict_themselves_are_refused),
        cmocka_unit_test(bodies_that_are_no_json_object_are_refused),
        cmocka_unit_test(deep_nesting_is_refused_and_names_the_limit),
        cmocka_unit_test(brackets_in_strings_do_not_count_as_depth),
        cmocka_unit_test(errors_never_echo_megabytes),
        cmocka_unit_test(values_that_mean_off_are_accepted),
        cmocka_unit_test(sampling_params_are_what_was_asked_for),
        cmocka_unit_test(greedy_and_tiny_temperatures_are_normalised),
        cmocka_unit_test(ignoring_eos_leaves_only_the_requests_stop_tokens),
        cmocka_unit_test(output_limits_follow_their_order),
        cmocka_unit_test(defaults_of_the_model_yield_to_the_request),
        cmocka_unit_test(prompts_come_in_four_shapes),
        cmocka_unit_test(usage_is_streamed_only_when_asked_for),
        cmocka_unit_test(messages_reach_the_template_in_one_shape),
        cmocka_unit_test(null_absent_and_empty_content_are_the_same),
        cmocka_unit_test(error_objects_have_the_agreed_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
