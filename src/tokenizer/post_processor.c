#include "tokenizer/post_processor.h"

#include "base/memory.h"
#include "tokenizer/component.h"

enum { MAX_SURROUNDING_TOKENS = 1024 };

static enum status check_id(const json_t *json, int32_t vocab_size, int32_t *id, struct error *err)
{
    if (!json_is_integer(json) || json_integer_value(json) < 0 ||
        json_integer_value(json) >= vocab_size)
        return error_set_field(err, STATUS_INVALID, "post_processor",
                               "post-processor: a token id must be an integer of 0 to %d",
                               vocab_size - 1);
    *id = (int32_t)json_integer_value(json);
    return STATUS_OK;
}

/** Appends the ids of a template's special token, looked up in its "special_tokens". */
static enum status append_special(struct token_ids *ids, const json_t *json, const json_t *special,
                                  int32_t vocab_size, struct error *err)
{
    struct str name;
    TRY(component_string(special, "id", &name, err));
    const json_t *entry =
        json_object_getn(json_object_get(json, "special_tokens"), name.ptr, name.len);
    const json_t *array;
    if (!entry)
        return error_set_field(err, STATUS_INVALID, "post_processor",
                               "post-processor: '" STR_FORMAT "' is not among its special_tokens",
                               STR_ARG(str_slice(name, 0, 100)));
    TRY(component_array(entry, "ids", &array, err));
    for (size_t i = 0; i < json_array_size(array); i++) {
        int32_t id = -1;
        TRY(check_id(json_array_get(array, i), vocab_size, &id, err));
        token_ids_append(ids, id);
    }
    return STATUS_OK;
}

/** Puts `outer` before (or behind) what stands there already. */
static enum status surround(struct post_processor *processor, const struct token_ids *before,
                            const struct token_ids *behind, struct error *err)
{
    if (processor->prefix.len + before->len > MAX_SURROUNDING_TOKENS ||
        processor->suffix.len + behind->len > MAX_SURROUNDING_TOKENS)
        return error_set_field(err, STATUS_TOO_LARGE, "post_processor",
                               "post-processor: more than %d tokens around a text",
                               MAX_SURROUNDING_TOKENS);
    struct token_ids prefix = {0};
    for (size_t i = 0; i < before->len; i++)
        token_ids_append(&prefix, before->items[i]);
    for (size_t i = 0; i < processor->prefix.len; i++)
        token_ids_append(&prefix, processor->prefix.items[i]);
    token_ids_deinit(&processor->prefix);
    processor->prefix = prefix;
    for (size_t i = 0; i < behind->len; i++)
        token_ids_append(&processor->suffix, behind->items[i]);
    return STATUS_OK;
}

/** The template of a single text: special tokens, and the text ("A") once. */
static enum status read_template(const json_t *json, int32_t vocab_size, struct token_ids *before,
                                 struct token_ids *behind, struct error *err)
{
    const json_t *array;
    TRY(component_array(json, "single", &array, err));
    int num_texts = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        const json_t *sequence = json_object_get(item, "Sequence");
        if (special) {
            TRY(append_special(num_texts == 0 ? before : behind, json, special, vocab_size, err));
            continue;
        }
        struct str id;
        TRY(component_string(sequence, "id", &id, err));
        if (!str_eq_c(id, "A"))
            return error_set_field(err, STATUS_INVALID, "post_processor",
                                   "post-processor: sequence '" STR_FORMAT
                                   "' in the template of a single text; expected A",
                                   STR_ARG(str_slice(id, 0, 100)));
        num_texts++;
    }
    if (num_texts != 1)
        return error_set_field(err, STATUS_UNSUPPORTED, "post_processor",
                               "post-processor: a template with the text %d times; only once is "
                               "supported",
                               num_texts);
    return STATUS_OK;
}

/** The ["spelling", id] of a Bert or Roberta processor. */
static enum status read_pair(const json_t *json, const char *key, int32_t vocab_size,
                             struct token_ids *ids, struct error *err)
{
    const json_t *pair;
    int32_t id = -1;
    TRY(component_array(json, key, &pair, err));
    TRY(check_id(json_array_get(pair, 1), vocab_size, &id, err));
    token_ids_append(ids, id);
    return STATUS_OK;
}

static enum status read_processor(struct post_processor *processor, const json_t *json,
                                  int32_t vocab_size, int depth, struct error *err)
{
    struct str type;
    TRY(component_type(json, &type, err));
    if (str_eq_c(type, "ByteLevel"))
        return STATUS_OK; // changes offsets into the text only, which nobody asks for
    if (str_eq_c(type, "Sequence")) {
        if (depth == COMPONENT_MAX_DEPTH)
            return error_set(err, STATUS_TOO_LARGE,
                             "more than %d post-processor sequences in each other",
                             COMPONENT_MAX_DEPTH);
        const json_t *array;
        TRY(component_array(json, "processors", &array, err));
        for (size_t i = 0; i < json_array_size(array); i++)
            TRY(read_processor(processor, json_array_get(array, i), vocab_size, depth + 1, err));
        return STATUS_OK;
    }
    struct token_ids before = {0}, behind = {0};
    enum status status;
    if (str_eq_c(type, "TemplateProcessing")) {
        status = read_template(json, vocab_size, &before, &behind, err);
    } else if (str_eq_c(type, "BertProcessing") || str_eq_c(type, "RobertaProcessing")) {
        status = read_pair(json, "cls", vocab_size, &before, err);
        if (status == STATUS_OK)
            status = read_pair(json, "sep", vocab_size, &behind, err);
    } else {
        status = error_set_field(err, STATUS_UNSUPPORTED, "post_processor",
                                 "post-processor '" STR_FORMAT
                                 "' is not supported; supported are TemplateProcessing, ByteLevel, "
                                 "BertProcessing, RobertaProcessing, Sequence",
                                 STR_ARG(str_slice(type, 0, 100)));
    }
    if (status == STATUS_OK)
        status = surround(processor, &before, &behind, err);
    token_ids_deinit(&before);
    token_ids_deinit(&behind);
    return status;
}

enum status post_processor_init(struct post_processor *processor, const json_t *json,
                                int32_t vocab_size, struct error *err)
{
    *processor = (struct post_processor){0};
    if (!json || json_is_null(json))
        return STATUS_OK;
    enum status status = read_processor(processor, json, vocab_size, 0, err);
    if (status != STATUS_OK)
        post_processor_deinit(processor);
    return status;
}

void post_processor_deinit(struct post_processor *processor)
{
    token_ids_deinit(&processor->prefix);
    token_ids_deinit(&processor->suffix);
    *processor = (struct post_processor){0};
}
