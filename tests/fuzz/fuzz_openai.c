// Bodies of chat, completion, response, message and embedding requests, from bytes to what the
// engine would be given. The first byte picks the endpoint and how the template wants content.
#include <stddef.h>
#include <stdint.h>

#include "api_server/chat_messages.h"
#include "api_server/constraint_fields.h"
#include "api_server/json_body.h"
#include "api_server/messages_request.h"
#include "api_server/openai_protocol.h"
#include "api_server/responses_request.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB_SIZE = 1000, MAX_MODEL_LEN = 128, NUM_PROMPT_TOKENS = 10, HIDDEN_SIZE = 64 };

static const struct protocol_config config = {
    .vocab_size = VOCAB_SIZE,
    .max_logprobs = 20,
    .eos_token_id = 2,
    .pooling = {.type = POOLING_LAST, .use_activation = true, .is_matryoshka = true},
};

/** What must hold of every request that is accepted. */
static void check_params(const struct sampling_params *p)
{
    CHECK(p->temperature >= 0 && p->temperature <= 2);
    CHECK(p->top_p > 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1);
    CHECK(p->top_k >= 0 && p->top_k < VOCAB_SIZE);
    CHECK(p->repetition_penalty > 0);
    CHECK(p->max_tokens >= 1 && p->max_tokens <= MAX_MODEL_LEN - NUM_PROMPT_TOKENS);
    CHECK(p->min_tokens >= 0 && p->min_tokens <= p->max_tokens);
    CHECK(p->num_stop_token_ids <= MAX_STOP_TOKEN_IDS && p->num_logit_bias <= MAX_LOGIT_BIAS);
    CHECK(p->num_allowed_token_ids <= MAX_ALLOWED_TOKEN_IDS);
    CHECK(p->num_logprobs >= -1 && p->num_logprobs <= 20);
    CHECK(p->num_prompt_logprobs >= -1 && p->num_prompt_logprobs <= 20);
    for (int32_t i = 0; i < p->num_logit_bias; i++)
        CHECK(p->logit_bias[i].token_id >= 0 && p->logit_bias[i].token_id < VOCAB_SIZE);
    for (int32_t i = 0; i < p->num_allowed_token_ids; i++)
        CHECK(p->allowed_token_ids[i] >= 0 && p->allowed_token_ids[i] < VOCAB_SIZE);
}

static enum status run_chat(const json_t *body, bool as_parts, struct arena *arena,
                            struct generation_fields *fields, struct api_error *err)
{
    struct chat_request request;
    TRY(chat_request_parse(&request, body, &config, arena, err));
    *fields = request.common;
    json_t *messages;
    TRY(chat_messages_normalize(&messages, request.messages, as_parts, err));
    for (size_t i = 0; i < json_array_size(messages); i++)
        chat_message_text(json_array_get(messages, i), arena);
    json_decref(messages);
    return STATUS_OK;
}

static enum status run_completion(const json_t *body, struct arena *arena,
                                  struct generation_fields *fields, struct api_error *err)
{
    struct completion_request request;
    TRY(completion_request_parse(&request, body, &config, arena, err));
    *fields = request.common;
    CHECK(request.num_prompts >= 1 && request.num_prompts <= MAX_PROMPTS);
    return STATUS_OK;
}

static enum status run_embedding(const json_t *body, struct arena *arena, struct api_error *err)
{
    struct embedding_request request;
    TRY(embedding_request_parse(&request, body, &config, HIDDEN_SIZE, "fuzzed", arena, err));
    CHECK(request.chat.messages || request.num_prompts >= 1);
    CHECK(request.num_prompts <= MAX_CHOICES);
    CHECK(request.pooling.type == POOLING_LAST);
    CHECK(request.pooling.dimensions >= 0 && request.pooling.dimensions <= HIDDEN_SIZE);
    CHECK(request.chat.common.sampling.n == 1 && !request.chat.common.stream);
    return STATUS_OK;
}

enum { IS_CHAT = 1, AS_PARTS = 2, IS_MESSAGES = 4, IS_RESPONSES = 8, IS_EMBEDDING = 64 };

/** Puts the chat request that a body of another language means in its place. */
static enum status translate(json_t **body, uint8_t choice, struct arena *arena,
                             struct api_error *err)
{
    json_t *chat;
    struct response response;
    if (choice & IS_MESSAGES)
        TRY(messages_request_to_chat(&chat, *body, choice & AS_PARTS, err));
    else
        TRY(responses_request_to_chat(&chat, &response, *body, choice & AS_PARTS, arena, err));
    CHECK(json_is_array(json_object_get(chat, "messages")));
    json_decref(*body);
    *body = chat;
    return STATUS_OK;
}

static enum status run(json_t **request, uint8_t choice, struct arena *arena, struct api_error *err)
{
    struct generation_fields fields;
    struct sampling_params params;
    if (choice & IS_EMBEDDING)
        return run_embedding(*request, arena, err);
    if (choice & (IS_MESSAGES | IS_RESPONSES)) {
        TRY(translate(request, choice, arena, err));
        choice |= IS_CHAT;
    }
    const json_t *body = *request;
    if (choice & IS_CHAT)
        TRY(run_chat(body, choice & AS_PARTS, arena, &fields, err));
    else
        TRY(run_completion(body, arena, &fields, err));
    TRY(prompt_length_check(&fields.sampling, NUM_PROMPT_TOKENS, MAX_MODEL_LEN, err));
    TRY(sampling_resolve(&fields.sampling, &config, NUM_PROMPT_TOKENS, MAX_MODEL_LEN, fields.echo,
                         arena, &params, err));
    fields.sampling.num_bad_words = 0; // their words need a tokenizer
    TRY(constraint_fields_resolve(&fields.sampling, &config, NULL, arena, &params, err));
    check_params(&params);
    if (params.num_automaton_words > 0)
        CHECK(byte_automaton_check(params.automaton, params.num_automaton_words, NULL) ==
              STATUS_OK);
    return STATUS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level(LOG_LEVEL_ERROR);
    if (size == 0)
        return 0;
    struct str text = {(const char *)data + 1, size - 1};
    struct arena arena = {0};
    struct api_error err = {0};
    json_t *body;
    enum status status = json_body_parse(&body, text, &err);
    if (status == STATUS_OK)
        status = run(&body, data[0], &arena, &err);
    if (status != STATUS_OK) { // every refusal is valid JSON of a few kilobytes
        struct buf out = {0};
        api_error_write(&out, &err);
        json_t *json = json_loadb(out.ptr, out.len, 0, NULL);
        CHECK(json != NULL && out.len < 16384 && err.message[0] != '\0');
        CHECK(utf8_is_valid(buf_str(&out), NULL));
        json_decref(json);
        buf_deinit(&out);
    }
    json_decref(body);
    arena_deinit(&arena);
    return 0;
}
