// JSON → checked request structs, for the endpoints that speak OpenAI's language.
//
// Reading a body happens in the order in which the reference reports errors: types and the body's
// own rules first (..._parse), then, once the prompt's length is known, ranges and limits
// (sampling_resolve). Text in the structs is borrowed from the body's JSON, arrays are in the
// arena.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api_server/api_error.h"
#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"
#include "config/hf_config.h"
#include "config/options.h"
#include "config/pooling_config.h"
#include "message/message.h"

enum {
    MAX_CHOICES = 16384, // prompts times n of one request
    MAX_PROMPTS = 1024,
    MAX_STOP_STRINGS = 256,
};

/** What requests are checked against: facts of the model and the server's defaults. Constant after
 *  start. */
struct protocol_config {
    int32_t vocab_size;   // token ids from outside must be below it
    int32_t max_logprobs; // -1: the vocabulary
    int32_t eos_token_id; // -1: none
    int32_t num_extra_eos_ids;
    const int32_t *extra_eos_ids; // further ids that end an answer; stop_reason names them
    struct generation_config defaults;
    struct pooling_config pooling; // type NONE: the model generates
    bool trust_request_chat_template;
    bool return_tokens_as_token_ids;
    bool force_include_usage;
};

/** Ends an answer whose end is some pattern of tokens, repeated. */
struct repetition_rule {
    int32_t min_pattern_size, max_pattern_size; // tokens; max 0: off
    int32_t min_count;                          // how often it has to stand there
};

/** Sampling fields as sent: typed, not yet ranged. `has_...`: given and not null. */
struct sampling_fields {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty, has_seed;
    bool has_max_tokens;
    double temperature, top_p, min_p;
    double presence_penalty, frequency_penalty, repetition_penalty;
    int64_t top_k, n, seed, min_tokens;
    int64_t max_tokens;           // the newer field's value when both are given
    const char *max_tokens_field; // the field it came from
    int64_t default_max_tokens;   // the endpoint's own; 0: none
    int32_t num_logprobs;         // -1: none; -2: the whole vocabulary
    int32_t num_prompt_logprobs;  // likewise
    bool ignore_eos;
    int32_t num_stop;
    struct str *stop;
    int32_t num_stop_token_ids;
    const int32_t *stop_token_ids;
    int32_t num_logit_bias;
    const struct logit_bias *logit_bias;
    bool has_allowed_token_ids;
    int32_t num_allowed_token_ids;
    const int32_t *allowed_token_ids;
    int32_t num_choices; // of structured_outputs; 0: not given
    struct str *choices;
    int32_t num_bad_words;
    struct str *bad_words;
    int32_t num_logprob_token_ids; // 0: not given
    const int32_t *logprob_token_ids;
    struct repetition_rule repetition;
};

enum { NUM_LOGPROBS_NONE = -1, NUM_LOGPROBS_ALL = -2 };

/** What chat and completion requests share. */
struct generation_fields {
    struct str model, request_id, cache_salt;
    struct sampling_fields sampling;
    bool stream, include_usage, continuous_usage;
    bool echo;
    bool skip_special_tokens, spaces_between_special_tokens;
    bool include_stop_str_in_output, add_special_tokens;
    bool return_token_ids, return_prompt_text, return_tokens_as_token_ids;
    bool has_truncate_prompt_tokens;
    int64_t truncate_prompt_tokens; // -1: to the longest input
    bool truncate_right;            // keep the start instead of the end
    int64_t priority;
};

struct chat_request {
    struct generation_fields common;
    const json_t *messages, *tools, *documents; // tools, documents: NULL when absent
    const json_t *chat_template_kwargs;         // NULL when absent
    struct str chat_template;                   // ptr NULL: the server's
    struct str reasoning_effort;
    bool add_generation_prompt, continue_final_message;
};

/** One prompt of a completion: text or token ids. */
struct completion_prompt {
    struct str text; // ptr NULL: ids
    int32_t num_ids;
    const int32_t *ids;
};

struct completion_request {
    struct generation_fields common;
    int32_t num_prompts;
    const struct completion_prompt *prompts;
};

/** How an answer shows vectors. */
struct embedding_format {
    bool is_base64;   // else lists of numbers
    enum dtype dtype; // of base64's elements: F32, F16 or BF16
    bool is_big_endian;
};

struct embedding_request {
    struct chat_request chat; // its common fields; messages NULL: the prompts below
    int32_t num_prompts;
    const struct completion_prompt *prompts;
    struct embedding_format format;
    struct pooling_params pooling; // resolved
};

/** Errors are in `err`, ready for the client. The structs borrow from `body`. */
NODISCARD enum status chat_request_parse(struct chat_request *request, const json_t *body,
                                         const struct protocol_config *config, struct arena *arena,
                                         struct api_error *err);
NODISCARD enum status completion_request_parse(struct completion_request *request,
                                               const json_t *body,
                                               const struct protocol_config *config,
                                               struct arena *arena, struct api_error *err);

/** `hidden_size`: of the model; `model_name` stands in messages. */
NODISCARD enum status embedding_request_parse(struct embedding_request *request, const json_t *body,
                                              const struct protocol_config *config,
                                              int32_t hidden_size, const char *model_name,
                                              struct arena *arena, struct api_error *err);

/** A field that holds a text, a list of token ids, or a list of up to `max` of either; given and
 *  not empty. */
NODISCARD enum status prompts_parse(const json_t *body, const char *key, size_t max,
                                    const struct completion_prompt **prompts, int32_t *num_prompts,
                                    struct arena *arena, struct api_error *err);

/** How messages are rendered: generation prompt (`adds_generation_prompt` unless given),
 *  continuation, template and its variables. */
NODISCARD enum status template_fields_parse(struct chat_request *request, const json_t *body,
                                            bool adds_generation_prompt,
                                            const struct protocol_config *config,
                                            struct api_error *err);

/** `truncate_prompt_tokens` and `truncation_side`. */
NODISCARD enum status truncation_fields_parse(struct generation_fields *fields, const json_t *body,
                                              struct api_error *err);

/** `priority`, `request_id` and `cache_salt`. */
NODISCARD enum status request_fields_parse(struct generation_fields *fields, const json_t *body,
                                           struct api_error *err);

/** Fields that both endpoints have, but for logprobs and max_tokens. */
NODISCARD enum status generation_fields_parse(struct generation_fields *fields, const json_t *body,
                                              const struct protocol_config *config,
                                              struct arena *arena, struct api_error *err);

/** `prompt_logprobs` of either endpoint, into `*num`. */
NODISCARD enum status prompt_logprobs_parse(const json_t *body, bool stream, int32_t *num,
                                            struct api_error *err);

/** The body as an object, or the error of a wrong top level. */
NODISCARD enum status body_require_object(const json_t *body, struct api_error *err);

/** Token ids of a JSON array: integers within int32, none negative. `loc` stands in messages. */
NODISCARD enum status token_ids_parse(const json_t *array, const char *loc, int32_t **ids,
                                      int32_t *num_ids, struct arena *arena, struct api_error *err);

/**
 * Ranges, defaults and limits: fills what the engine samples with, for a prompt of
 * `num_prompt_tokens`. The seed stays as sent, or is drawn. Arrays live in `arena`.
 * `max_tokens_zero`: max_tokens 0 is allowed (prompt scoring); the engine is then asked for one.
 */
NODISCARD enum status sampling_resolve(const struct sampling_fields *fields,
                                       const struct protocol_config *config,
                                       int32_t num_prompt_tokens, int32_t max_model_len,
                                       bool max_tokens_zero, struct arena *arena,
                                       struct sampling_params *params, struct api_error *err);

/** The output that a request asks for, by itself or by its endpoint's default; 0: as much as there
 *  is room for. */
int64_t sampling_requested_output(const struct sampling_fields *fields);

/** Checks a prompt's length against the context and the requested output. */
NODISCARD enum status prompt_length_check(const struct sampling_fields *fields,
                                          int32_t num_prompt_tokens, int32_t max_model_len,
                                          struct api_error *err);
