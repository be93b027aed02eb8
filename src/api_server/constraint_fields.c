// Fields that narrow an answer down: see constraint_fields.h.
#include "api_server/constraint_fields.h"

#include <inttypes.h>
#include <string.h>

#include "api_server/json_body.h"
#include "base/memory.h"
#include "structured_output/choice_compiler.h"

enum {
    MAX_PATTERN_SIZE = 4096, // of repetition_detection, and of its counts
};

/** A list of strings, copied. `*num` is 0 when the field is absent or empty. */
static enum status parse_strings(const json_t *object, const char *key, const char *loc,
                                 struct arena *arena, struct str **out, int32_t *num, bool *given,
                                 struct api_error *err)
{
    const json_t *array;
    TRY(json_field_array(object, key, &array, err));
    size_t count = json_array_size(array);
    *given = array != NULL;
    *out = arena_array(arena, struct str, count + 1);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_string(item)) {
            char item_loc[96];
            snprintf(item_loc, sizeof(item_loc), "%s.%zu", loc, i);
            return api_error_schema(err, "string_type", item_loc, NULL,
                                    "Input should be a valid string");
        }
        (*out)[i] = arena_str(arena, json_str(item));
    }
    *num = (int32_t)count;
    return STATUS_OK;
}

// ---- structured_outputs ----

static bool is_given(const json_t *object, const char *key)
{
    const json_t *value = json_field_get(object, key).value;
    return value && !json_is_false(value); // json_object: false asks for nothing
}

/** Forms that the language of structured_outputs has and that this server cannot compile. */
static enum status refuse_other_forms(const json_t *object, struct api_error *err)
{
    static const char *const forms[] = {"json", "regex", "grammar", "json_object",
                                        "structural_tag"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        char name[64];
        snprintf(name, sizeof(name), "structured_outputs.%s", forms[i]);
        if (is_given(object, forms[i]))
            return api_error_unsupported(err, name);
    }
    return STATUS_OK;
}

static enum status count_forms(const json_t *object, struct api_error *err)
{
    static const char *const kinds[] = {"json",    "regex",       "choice",
                                        "grammar", "json_object", "structural_tag"};
    int num = 0, num_first = 0;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        num += is_given(object, kinds[i]);
        num_first += i < 3 && is_given(object, kinds[i]);
    }
    if (num_first > 1)
        return api_error_validator(err, "structured_outputs",
                                   "You can only use one kind of constraints for structured "
                                   "outputs ('json', 'regex' or 'choice').");
    if (num > 1)
        return api_error_validator(err, "structured_outputs",
                                   "You can only use one kind of structured outputs constraint "
                                   "but multiple are specified");
    if (num == 0)
        return api_error_validator(err, "structured_outputs",
                                   "You must use one kind of structured outputs constraint but "
                                   "none are specified");
    return STATUS_OK;
}

static enum status parse_structured_outputs(struct sampling_fields *f, const json_t *body,
                                            struct arena *arena, struct api_error *err)
{
    const json_t *object;
    bool given, flag;
    struct str pattern;
    TRY(json_field_object(body, "structured_outputs", &object, err));
    if (!object)
        return STATUS_OK;
    TRY(count_forms(object, err));
    TRY(refuse_other_forms(object, err));
    // How JSON is spaced and closed: a list of strings has neither.
    TRY(json_field_str(object, "whitespace_pattern", &pattern, err));
    TRY(json_field_bool(object, "disable_any_whitespace", &flag, NULL, err));
    TRY(json_field_bool(object, "disable_additional_properties", &flag, NULL, err));
    TRY(parse_strings(object, "choice", "body.structured_outputs.choice", arena, &f->choices,
                      &f->num_choices, &given, err));
    if (f->num_choices == 0)
        return api_error_validator(err, "structured_outputs", "Choice '[]' cannot be empty");
    return STATUS_OK;
}

// ---- the others ----

static enum status parse_repetition(struct sampling_fields *f, const json_t *body,
                                    struct api_error *err)
{
    const json_t *object;
    TRY(json_field_object(body, "repetition_detection", &object, err));
    if (!object)
        return STATUS_OK;
    int64_t max = 0, min = 0, count = 0;
    TRY(json_field_int(object, "max_pattern_size", &max, NULL, err));
    TRY(json_field_int(object, "min_pattern_size", &min, NULL, err));
    TRY(json_field_int(object, "min_count", &count, NULL, err));
    if (max < 0 || min < 0 || max > MAX_PATTERN_SIZE || min > max)
        return api_error_validator(err, "repetition_detection",
                                   "repetition_detection: min_pattern_size and max_pattern_size "
                                   "must satisfy 0 <= min <= max <= %d, got %" PRId64
                                   " and %" PRId64 ".",
                                   MAX_PATTERN_SIZE, min, max);
    if (max > 0 && (count < 2 || count > MAX_PATTERN_SIZE))
        return api_error_validator(err, "repetition_detection",
                                   "repetition_detection: min_count must be in [2, %d], got "
                                   "%" PRId64 ".",
                                   MAX_PATTERN_SIZE, count);
    f->repetition =
        (struct repetition_rule){(int32_t)max_i64(min, 1), (int32_t)max, (int32_t)count};
    return STATUS_OK;
}

static enum status parse_listed_logprobs(struct sampling_fields *f, const json_t *body,
                                         struct arena *arena, struct api_error *err)
{
    const json_t *array;
    TRY(json_field_array(body, "logprob_token_ids", &array, err));
    if (json_array_size(array) == 0)
        return STATUS_OK;
    if (json_array_size(array) > MAX_LOGPROB_TOKEN_IDS)
        return api_error_validator(err, "logprob_token_ids",
                                   "logprob_token_ids can hold at most %d ids, got %zu.",
                                   MAX_LOGPROB_TOKEN_IDS, json_array_size(array));
    // Chat has a switch, completions a number.
    const json_t *logprobs = json_field_get(body, "logprobs").value;
    if (!logprobs || json_is_false(logprobs))
        return api_error_validator(
            err, "logprob_token_ids",
            "when using `logprob_token_ids`, `logprobs` must be set to true.");
    int32_t *ids;
    TRY(token_ids_parse(array, "body.logprob_token_ids", &ids, &f->num_logprob_token_ids, arena,
                        err));
    f->logprob_token_ids = ids;
    return STATUS_OK;
}

enum status constraint_fields_parse(struct sampling_fields *f, const json_t *body,
                                    struct arena *arena, struct api_error *err)
{
    bool given;
    TRY(parse_structured_outputs(f, body, arena, err));
    TRY(parse_strings(body, "bad_words", "body.bad_words", arena, &f->bad_words, &f->num_bad_words,
                      &given, err));
    TRY(parse_repetition(f, body, err));
    return parse_listed_logprobs(f, body, arena, err);
}

// ---- for the engine ----

static enum status compile_choices(const struct sampling_fields *f,
                                   const struct protocol_config *config, struct arena *arena,
                                   struct sampling_params *p, struct api_error *err)
{
    if (f->num_choices == 0)
        return STATUS_OK;
    if (config->eos_token_id < 0 && config->num_extra_eos_ids == 0)
        return api_error_param(err, "structured_outputs", NULL,
                               "structured_outputs needs a model with an end-of-sequence token, "
                               "which this one lacks.");
    struct error cause = {0};
    if (choice_compile(f->choices, f->num_choices, arena, &p->automaton, &p->num_automaton_words,
                       &cause) != STATUS_OK)
        return api_error_param(err, "structured_outputs", NULL, "structured_outputs.choice: %s.",
                               cause.message);
    return STATUS_OK;
}

/** Appends a word's tokens behind their number. */
static enum status append_word(struct sampling_params *p, int32_t *ints, const int32_t *ids,
                               int32_t num_ids, struct api_error *err)
{
    if (num_ids >= MAX_BAD_WORD_INTS - p->num_bad_word_ints)
        return api_error_set(err, API_ERROR_VALUE,
                             "bad_words can hold at most %d tokens and words in all.",
                             MAX_BAD_WORD_INTS);
    ints[p->num_bad_word_ints++] = num_ids;
    memcpy(ints + p->num_bad_word_ints, ids, (size_t)num_ids * sizeof(*ids));
    p->num_bad_word_ints += num_ids;
    return STATUS_OK;
}

/** A word is forbidden as it stands and, where that is another token, behind a blank. */
static enum status resolve_bad_words(const struct sampling_fields *f,
                                     const struct tokenizer *tokenizer, struct arena *arena,
                                     struct sampling_params *p, struct api_error *err)
{
    if (f->num_bad_words == 0)
        return STATUS_OK;
    int32_t *ints = arena_array(arena, int32_t, MAX_BAD_WORD_INTS);
    p->bad_words = ints;
    for (int32_t i = 0; i < f->num_bad_words; i++) {
        struct str word = f->bad_words[i];
        if (word.len == 0)
            return api_error_set(err, API_ERROR_VALUE, "bad_words cannot contain an empty string.");
        while (word.len > 1 && word.ptr[0] == ' ')
            word = str_slice(word, 1, word.len);
        int32_t num_plain, num_spaced;
        const int32_t *plain = tokenizer_encode(tokenizer, word, false, arena, &num_plain);
        struct str spaced_word = str_from(arena_printf(arena, " " STR_FORMAT, STR_ARG(word)));
        const int32_t *spaced = tokenizer_encode(tokenizer, spaced_word, false, arena, &num_spaced);
        if (num_plain > 0)
            TRY(append_word(p, ints, plain, num_plain, err));
        if (num_spaced > 0 && num_spaced == num_plain && spaced[0] != plain[0])
            TRY(append_word(p, ints, spaced, num_spaced, err));
    }
    return STATUS_OK;
}

enum status constraint_fields_resolve(const struct sampling_fields *f,
                                      const struct protocol_config *config,
                                      const struct tokenizer *tokenizer, struct arena *arena,
                                      struct sampling_params *p, struct api_error *err)
{
    TRY(compile_choices(f, config, arena, p, err));
    TRY(resolve_bad_words(f, tokenizer, arena, p, err));
    if (f->num_logprob_token_ids > 0) {
        for (int32_t i = 0; i < f->num_logprob_token_ids; i++) {
            if (f->logprob_token_ids[i] >= config->vocab_size)
                return api_error_param(err, "logprob_token_ids", NULL,
                                       "logprob_token_ids contains out-of-vocab token id %d: the "
                                       "vocabulary has %d entries.",
                                       f->logprob_token_ids[i], config->vocab_size);
        }
        p->num_logprob_token_ids = f->num_logprob_token_ids;
        p->logprob_token_ids = f->logprob_token_ids;
        p->num_logprobs = f->num_logprob_token_ids; // answers show all of them
    }
    return STATUS_OK;
}
