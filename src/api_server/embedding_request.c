// The body of /v1/embeddings.
#include <string.h>

#include "api_server/json_body.h"
#include "api_server/openai_protocol.h"
#include "base/memory.h"

/** A word of a short list, or the error that names them; `*index` stays when it is absent. */
static enum status parse_word(const json_t *body, const char *key, const char *const *words,
                              size_t num_words, size_t *index, struct api_error *err)
{
    struct str text;
    char loc[96], list[160] = "";
    TRY(json_field_str(body, key, &text, err));
    if (!text.ptr)
        return STATUS_OK;
    size_t len = 0;
    for (size_t i = 0; i < num_words; i++) {
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s'%s'",
                                i == 0               ? ""
                                : i + 1 == num_words ? " or "
                                                     : ", ",
                                words[i]);
        if (str_eq_c(text, words[i])) {
            *index = i;
            return STATUS_OK;
        }
    }
    snprintf(loc, sizeof(loc), "body.%s", key);
    return api_error_schema(err, "literal_error", loc, NULL, "Input should be %s", list);
}

static enum status unsupported_word(const char *key, const char *word, struct api_error *err)
{
    return api_error_param(err, key, word, "vllm.c does not support %s '%s' yet", key, word);
}

static enum status parse_format(struct embedding_format *f, const json_t *body,
                                struct api_error *err)
{
    static const char *const formats[] = {"float", "base64", "bytes", "bytes_only"};
    static const char *const dtypes[] = {"float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"};
    static const enum dtype known_dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const char *const orders[] = {"native", "little", "big"};
    size_t format = 0, dtype = 0, order = 0;
    TRY(parse_word(body, "encoding_format", formats, ARRAY_LEN(formats), &format, err));
    TRY(parse_word(body, "embed_dtype", dtypes, ARRAY_LEN(dtypes), &dtype, err));
    TRY(parse_word(body, "endianness", orders, ARRAY_LEN(orders), &order, err));
    if (format > 1)
        return unsupported_word("encoding_format", formats[format], err);
    if (dtype >= ARRAY_LEN(known_dtypes))
        return unsupported_word("embed_dtype", dtypes[dtype], err);
    *f = (struct embedding_format){format == 1, known_dtypes[dtype], order == 2};
    return STATUS_OK;
}

static enum status parse_pooling(struct pooling_params *p, const json_t *body,
                                 const struct pooling_config *config, int32_t hidden_size,
                                 const char *model_name, struct api_error *err)
{
    int64_t dimensions;
    bool is_given;
    *p = (struct pooling_params){config->type, config->use_activation, config->dimensions};
    TRY(json_field_bool(body, "normalize", &p->use_activation, NULL, err)); // its older name
    TRY(json_field_bool(body, "use_activation", &p->use_activation, NULL, err));
    TRY(json_field_int(body, "dimensions", &dimensions, &is_given, err));
    if (!is_given)
        return STATUS_OK;
    struct error why;
    if (!pooling_config_allows(config, dimensions, hidden_size, model_name, &why))
        return api_error_from(err, &why);
    p->dimensions = (int32_t)dimensions;
    return STATUS_OK;
}

static enum status parse_input(struct embedding_request *r, const json_t *body,
                               const struct protocol_config *config, struct arena *arena,
                               struct api_error *err)
{
    struct json_field input = json_field_get(body, "input");
    bool is_empty = json_is_array(input.value) && json_array_size(input.value) == 0;
    TRY(json_field_array(body, "messages", &r->chat.messages, err));
    if (r->chat.messages && input.value)
        return api_error_validator(err, "input", "Only one of `input` and `messages` can be set.");
    r->chat.common.add_special_tokens = !r->chat.messages; // a template writes its own
    TRY(json_field_bool(body, "add_special_tokens", &r->chat.common.add_special_tokens, NULL, err));
    if (r->chat.messages)
        return template_fields_parse(&r->chat, body, false, config, err);
    if (!input.value || is_empty)
        return api_error_validator(err, "input",
                                   "Either `input` or `messages` must be provided and non-empty.");
    return prompts_parse(body, "input", MAX_CHOICES, &r->prompts, &r->num_prompts, arena, err);
}

enum status embedding_request_parse(struct embedding_request *r, const json_t *body,
                                    const struct protocol_config *config, int32_t hidden_size,
                                    const char *model_name, struct arena *arena,
                                    struct api_error *err)
{
    *r = (struct embedding_request){0};
    struct generation_fields *common = &r->chat.common;
    common->sampling = (struct sampling_fields){
        .n = 1, .num_logprobs = NUM_LOGPROBS_NONE, .num_prompt_logprobs = NUM_LOGPROBS_NONE};
    TRY(body_require_object(body, err));
    TRY(json_field_str(body, "model", &common->model, err));
    TRY(request_fields_parse(common, body, err));
    TRY(truncation_fields_parse(common, body, err));
    struct json_field media = json_field_get(body, "mm_processor_kwargs");
    if (media.value && json_object_size(media.value) > 0)
        return api_error_unsupported(err, "mm_processor_kwargs");
    TRY(parse_input(r, body, config, arena, err));
    TRY(parse_format(&r->format, body, err));
    return parse_pooling(&r->pooling, body, &config->pooling, hidden_size, model_name, err);
}
