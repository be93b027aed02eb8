// Sampling defaults and end-of-sequence ids out of generation_config.json.
//
// The two have different fates: `--generation-config vllm` drops the sampling defaults, but the ids
// that end an answer belong to the model and are always read, and an override of other keys leaves
// them alone.
#include "config/hf_generation.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory.h"

enum { MAX_EOS_TOKEN_IDS = 1024 };

static bool is_known_eos(const struct model_config *config, int32_t id)
{
    for (int32_t i = 0; i < config->num_eos_token_ids; i++) {
        if (config->eos_token_ids[i] == id)
            return true;
    }
    return false;
}

static enum status add_one(struct model_config *config, const struct hf_json *json, int32_t *ids,
                           const json_t *item, struct error *err)
{
    if (!json_is_integer(item))
        return hf_json_wrong(json, "eos_token_id", item, "a token id or a list of token ids", err);
    json_int_t id = json_integer_value(item);
    if (id < 0 || id >= config->vocab_size) {
        log_warning("%s: \"eos_token_id\" %" JSON_INTEGER_FORMAT
                    " is outside the vocabulary of %d tokens and is ignored",
                    json->name, id, config->vocab_size);
        return STATUS_OK;
    }
    if (!is_known_eos(config, (int32_t)id))
        ids[config->num_eos_token_ids++] = (int32_t)id;
    return STATUS_OK;
}

enum status hf_eos_add(struct model_config *config, const struct hf_json *json, struct error *err)
{
    const json_t *value = hf_json_find(json, "eos_token_id");
    if (!value)
        return STATUS_OK;
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > MAX_EOS_TOKEN_IDS)
        return error_set_field(err, STATUS_INVALID, "eos_token_id",
                               "%s: \"eos_token_id\" has %zu ids, expected at most %d", json->name,
                               count, MAX_EOS_TOKEN_IDS);
    int32_t *ids = arena_array(&config->arena, int32_t, (size_t)config->num_eos_token_ids + count);
    if (config->num_eos_token_ids > 0)
        memcpy(ids, config->eos_token_ids, (size_t)config->num_eos_token_ids * sizeof(*ids));
    config->eos_token_ids = ids;
    if (!json_is_array(value))
        return add_one(config, json, ids, value, err);
    for (size_t i = 0; i < count; i++)
        TRY(add_one(config, json, ids, json_array_get(value, i), err));
    return STATUS_OK;
}

static enum status parse_defaults(struct generation_config *g, const struct hf_json *json,
                                  struct error *err)
{
    const struct {
        const char *key;
        double min, max;
        double *out;
        bool *has;
    } numbers[] = {
        {"temperature", 0, 1e6, &g->temperature, &g->has_temperature},
        {"top_p", 0, 1, &g->top_p, &g->has_top_p},
        {"min_p", 0, 1, &g->min_p, &g->has_min_p},
        {"repetition_penalty", 1e-6, 1e6, &g->repetition_penalty, &g->has_repetition_penalty},
    };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        TRY(hf_json_double(json, numbers[i].key, numbers[i].min, numbers[i].max, HF_JSON_OPTIONAL,
                           numbers[i].out, err));
        *numbers[i].has = hf_json_find(json, numbers[i].key) != NULL;
    }
    if (g->has_top_p && g->top_p == 0)
        return hf_json_wrong(json, "top_p", hf_json_find(json, "top_p"),
                             "a number above 0 and at most 1", err);
    TRY(hf_json_int(json, "top_k", -1, INT32_MAX, HF_JSON_OPTIONAL, &g->top_k, err));
    g->has_top_k = hf_json_find(json, "top_k") != NULL;
    TRY(hf_json_int(json, "max_new_tokens", 1, INT32_MAX, HF_JSON_OPTIONAL, &g->max_new_tokens,
                    err));
    g->has_max_new_tokens = hf_json_find(json, "max_new_tokens") != NULL;
    return STATUS_OK;
}

/** The file's object; NULL when the model has none. */
static enum status read_file(json_t **out, const char *path, bool required, struct error *err)
{
    *out = NULL;
    struct mapped_file file;
    enum status status = mapped_file_open(&file, path, err);
    if (status == STATUS_NOT_FOUND && !required)
        return STATUS_OK;
    TRY(status);
    status = hf_json_parse_object(out, mapped_file_str(&file), path, err);
    mapped_file_close(&file);
    return status;
}

static enum status apply_override(struct model_config *config, const char *override_json,
                                  json_t *defaults, struct error *err)
{
    if (!override_json)
        return STATUS_OK;
    json_t *changes = NULL;
    TRY(hf_json_parse_object(&changes, str_from(override_json), "--override-generation-config",
                             err));
    json_object_update(defaults, changes);
    if (json_is_integer(json_object_get(changes, "max_new_tokens")))
        config->generation.max_new_tokens_is_cap = true;
    struct hf_json json = {"--override-generation-config", changes, NULL};
    enum status status = hf_eos_add(config, &json, err);
    json_decref(changes);
    return status;
}

enum status hf_generation_load(struct model_config *config, const char *generation,
                               const char *override_json, struct error *err)
{
    bool no_defaults = strcmp(generation, "vllm") == 0;
    bool is_folder = !no_defaults && strcmp(generation, "auto") != 0;
    const char *path = arena_printf(&config->arena, "%s/generation_config.json",
                                    is_folder ? generation : config->path);
    json_t *file = NULL;
    TRY(read_file(&file, path, is_folder, err));

    struct hf_json json = {path, file, NULL};
    enum status status = file ? hf_eos_add(config, &json, err) : STATUS_OK;
    json_t *defaults = json_object();
    if (status == STATUS_OK && file && !no_defaults) {
        json_object_update(defaults, file);
        config->generation.max_new_tokens_is_cap =
            is_folder && json_is_integer(json_object_get(file, "max_new_tokens"));
    }
    if (status == STATUS_OK)
        status = apply_override(config, override_json, defaults, err);
    if (status == STATUS_OK) {
        struct hf_json merged = {override_json ? "generation config" : path, defaults, NULL};
        status = parse_defaults(&config->generation, &merged, err);
    }
    json_decref(defaults);
    json_decref(file);
    return status;
}
