// Whether and how a model pools: see pooling_config.h. Later sources win: Sentence Transformers'
// files, then --pooler-config.
#include "config/pooling_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "config/hf_json.h"

static const char POOLER_CONFIG[] = "--pooler-config", HF_OVERRIDES[] = "--hf-overrides";

const char *pooling_type_name(enum pooling_type type)
{
    static const char *const names[NUM_POOLING_TYPES] = {"NONE", "LAST", "MEAN"};
    return names[type];
}

static enum status refuse_type(const char *where, const char *type, struct error *err)
{
    return error_set_field(err, STATUS_UNSUPPORTED, "pooling_type",
                           "%s: vllm.c does not support pooling type %.100s for decoders, expected "
                           "LAST or MEAN",
                           where, type);
}

static enum status parse_type(const char *where, const char *text, enum pooling_type *out,
                              struct error *err)
{
    for (int type = POOLING_LAST; type < NUM_POOLING_TYPES; type++) {
        if (strcmp(text, pooling_type_name((enum pooling_type)type)) == 0) {
            *out = (enum pooling_type)type;
            return STATUS_OK;
        }
    }
    return refuse_type(where, text, err);
}

// ---- Sentence Transformers ----

/** The JSON of a file in the model's directory; `*out` NULL when the file is not there. */
static enum status read_json(json_t **out, const char *path, struct error *err)
{
    *out = NULL;
    struct mapped_file file;
    enum status status = mapped_file_open(&file, path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    struct str text = mapped_file_str(&file);
    json_error_t failure;
    if (text.len <= HF_JSON_MAX_BYTES)
        *out = json_loadb(text.ptr, text.len, JSON_REJECT_DUPLICATES, &failure);
    else
        snprintf(failure.text, sizeof(failure.text), "it has %zu bytes", text.len);
    if (!*out)
        status = error_set(err, STATUS_INVALID, "%s is not JSON of at most %d bytes: %s", path,
                           HF_JSON_MAX_BYTES, failure.text);
    mapped_file_close(&file);
    return status;
}

/** "pooling_mode_lasttoken": true ..., or "pooling_mode": "lasttoken". */
static enum status read_pooling_module(struct pooling_config *config, const char *path,
                                       struct error *err)
{
    static const struct {
        const char *name; // behind "pooling_mode_"
        const char *type; // as vLLM calls it
    } modes[] = {
        {"lasttoken", "LAST"},
        {"mean_tokens", "MEAN"},
        {"mean", "MEAN"},
        {"cls_token", "CLS"},
        {"cls", "CLS"},
        {"max_tokens", "max_tokens"},
        {"mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
        {"weightedmean_tokens", "weightedmean_tokens"},
    };
    json_t *root;
    TRY(read_json(&root, path, err));
    enum status status = STATUS_OK;
    const char *mode = json_string_value(json_object_get(root, "pooling_mode"));
    bool is_known = !mode;
    for (size_t i = 0; i < ARRAY_LEN(modes) && status == STATUS_OK; i++) {
        char key[64];
        snprintf(key, sizeof(key), "pooling_mode_%s", modes[i].name);
        bool is_mode = mode && strcmp(mode, modes[i].name) == 0;
        is_known |= is_mode;
        if (is_mode || json_is_true(json_object_get(root, key)))
            status = parse_type(path, modes[i].type, &config->type, err);
    }
    if (status == STATUS_OK && !is_known)
        status = refuse_type(path, mode, err);
    json_decref(root);
    return status;
}

/** What modules.json lists: Transformer, Pooling, Normalize; a model without it does not pool by
 *  itself. */
static enum status read_modules(struct pooling_config *config, const json_t *modules,
                                const char *dir, const char *path, struct error *err)
{
    const char *pooling_path = NULL;
    bool normalizes = false;
    for (size_t i = 0; i < json_array_size(modules); i++) {
        const json_t *module = json_array_get(modules, i);
        const char *type = json_string_value(json_object_get(module, "type"));
        const char *name = type ? strrchr(type, '.') : NULL;
        if (!name)
            return error_set(err, STATUS_INVALID,
                             "%s: module %zu has no \"type\" such as "
                             "\"sentence_transformers.models.Pooling\"",
                             path, i);
        const char *at = json_string_value(json_object_get(module, "path"));
        if (strcmp(name, ".Pooling") == 0)
            pooling_path = at ? at : "";
        else if (strcmp(name, ".Normalize") == 0)
            normalizes = true;
        else if (strcmp(name, ".Transformer") != 0)
            return error_set_field(err, STATUS_UNSUPPORTED, "modules.json",
                                   "%s: vllm.c does not support modules of type %.200s, expected "
                                   "Transformer, Pooling and Normalize",
                                   path, type);
    }
    if (!pooling_path)
        return STATUS_OK;
    config->type = POOLING_LAST;
    config->use_activation = normalizes;
    struct arena arena = {0};
    const char *file = arena_printf(&arena, "%s/%s/config.json", dir, pooling_path);
    enum status status = read_pooling_module(config, file, err);
    arena_deinit(&arena);
    return status;
}

static enum status read_sentence_transformers(struct pooling_config *config, const char *dir,
                                              struct error *err)
{
    if (!dir) // a configuration from memory
        return STATUS_OK;
    struct arena arena = {0};
    const char *path = arena_printf(&arena, "%s/modules.json", dir);
    json_t *modules;
    enum status status = read_json(&modules, path, err);
    if (status == STATUS_OK && modules && !json_is_array(modules))
        status = error_set(err, STATUS_INVALID, "%s: expected a list of modules", path);
    if (status == STATUS_OK && modules)
        status = read_modules(config, modules, dir, path, err);
    json_decref(modules);
    arena_deinit(&arena);
    return status;
}

// ---- options ----

/** Refuses keys that are not in `known`; those whose value is null say nothing. */
static enum status check_keys(const json_t *object, const char *option, const char *const *known,
                              size_t num_known, struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        bool is_known = json_is_null(value);
        for (size_t i = 0; i < num_known; i++)
            is_known |= strcmp(key, known[i]) == 0;
        if (!is_known)
            return error_set_field(err, STATUS_UNSUPPORTED, option,
                                   "%s: vllm.c does not support the key \"%.100s\" yet", option,
                                   key);
    }
    return STATUS_OK;
}

static enum status read_pooler_type(struct pooling_config *config, const struct hf_json *json,
                                    struct error *err)
{
    const char *either = NULL, *sequence = NULL;
    TRY(hf_json_string(json, "pooling_type", HF_JSON_OPTIONAL, &either, err));
    TRY(hf_json_string(json, "seq_pooling_type", HF_JSON_OPTIONAL, &sequence, err));
    if (either && sequence && strcmp(either, sequence) != 0)
        return error_set_field(err, STATUS_INVALID, "pooling_type",
                               "%s: \"pooling_type\" is \"%.100s\" and \"seq_pooling_type\" is "
                               "\"%.100s\": expected one of them",
                               json->name, either, sequence);
    const char *type = either ? either : sequence;
    return type ? parse_type(json->name, type, &config->type, err) : STATUS_OK;
}

static enum status read_pooler_object(struct pooling_config *config, const json_t *object,
                                      struct error *err)
{
    static const char *const known[] = {"pooling_type",   "seq_pooling_type",
                                        "use_activation", "normalize",
                                        "dimensions",     "enable_chunked_processing"};
    const struct hf_json json = {POOLER_CONFIG, object, NULL};
    bool is_split = false;
    TRY(check_keys(object, POOLER_CONFIG, known, ARRAY_LEN(known), err));
    TRY(read_pooler_type(config, &json, err));
    TRY(hf_json_bool(&json, "normalize", &config->use_activation, err)); // its older name
    TRY(hf_json_bool(&json, "use_activation", &config->use_activation, err));
    TRY(hf_json_int(&json, "dimensions", 1, INT32_MAX, HF_JSON_OPTIONAL, &config->dimensions, err));
    TRY(hf_json_bool(&json, "enable_chunked_processing", &is_split, err));
    if (is_split)
        return error_set_field(err, STATUS_UNSUPPORTED, "enable_chunked_processing",
                               "%s: vllm.c does not support \"enable_chunked_processing\" (inputs "
                               "longer than the model takes) yet",
                               POOLER_CONFIG);
    return STATUS_OK;
}

static enum status read_pooler_config(struct pooling_config *config, const char *text,
                                      struct error *err)
{
    if (!text)
        return STATUS_OK;
    json_t *object;
    TRY(hf_json_parse_object(&object, str_from(text), POOLER_CONFIG, err));
    enum status status = read_pooler_object(config, object, err);
    json_decref(object);
    return status;
}

/** What config.json says of matryoshka, and over it --hf-overrides. */
static enum status read_matryoshka(struct pooling_config *config, const struct model_config *model,
                                   struct error *err)
{
    if (!model->raw) // a configuration that was not read from a file
        return STATUS_OK;
    TRY(hf_config_get_bool(model, "is_matryoshka", &config->is_matryoshka, err));
    int32_t *list = NULL, count = 0;
    TRY(hf_config_get_ints(model, "matryoshka_dimensions", 1, INT32_MAX, &list, &count, err));
    bool fits = count <= MAX_MATRYOSHKA_DIMENSIONS;
    for (int32_t i = 0; i < count && fits; i++)
        config->matryoshka_dimensions[i] = list[i];
    config->num_matryoshka_dimensions = fits ? count : 0;
    free(list);
    if (!fits)
        return error_set_field(err, STATUS_INVALID, "matryoshka_dimensions",
                               "config.json: \"matryoshka_dimensions\" has %d entries, expected at "
                               "most %d",
                               count, MAX_MATRYOSHKA_DIMENSIONS);
    return STATUS_OK;
}

static enum status read_override_object(struct pooling_config *config, const json_t *object,
                                        struct error *err)
{
    static const char *const known[] = {"is_matryoshka", "matryoshka_dimensions"};
    const struct hf_json json = {HF_OVERRIDES, object, NULL};
    TRY(check_keys(object, HF_OVERRIDES, known, ARRAY_LEN(known), err));
    TRY(hf_json_bool(&json, "is_matryoshka", &config->is_matryoshka, err));
    return hf_json_ints(&json, "matryoshka_dimensions", 1, INT32_MAX, MAX_MATRYOSHKA_DIMENSIONS,
                        config->matryoshka_dimensions, &config->num_matryoshka_dimensions, err);
}

static enum status read_overrides(struct pooling_config *config, const char *text,
                                  struct error *err)
{
    if (!text)
        return STATUS_OK;
    json_t *object;
    TRY(hf_json_parse_object(&object, str_from(text), HF_OVERRIDES, err));
    enum status status = read_override_object(config, object, err);
    json_decref(object);
    return status;
}

bool pooling_config_allows(const struct pooling_config *config, int64_t dimensions,
                           int32_t hidden_size, const char *name, struct error *why)
{
    char list[MAX_MATRYOSHKA_DIMENSIONS * 12 + 1] = "";
    bool is_listed = config->num_matryoshka_dimensions == 0;
    size_t len = 0;
    for (int32_t i = 0; i < config->num_matryoshka_dimensions; i++) {
        is_listed |= config->matryoshka_dimensions[i] == dimensions;
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%d", i > 0 ? ", " : "",
                                config->matryoshka_dimensions[i]);
    }
    enum status status = STATUS_OK;
    if (!config->is_matryoshka)
        status = error_set_field(why, STATUS_INVALID, "dimensions",
                                 "Model \"%.200s\" does not support matryoshka representation, "
                                 "changing output dimensions will lead to poor results.",
                                 name);
    else if (!is_listed)
        status = error_set_field(why, STATUS_INVALID, "dimensions",
                                 "Model \"%.200s\" only supports [%s] matryoshka dimensions, use "
                                 "other output dimensions will lead to poor results.",
                                 name, list);
    else if (dimensions < 1)
        status =
            error_set_field(why, STATUS_INVALID, "dimensions", "Dimensions must be greater than 0");
    else if (dimensions > hidden_size)
        status = error_set_field(why, STATUS_INVALID, "dimensions",
                                 "Dimensions must be at most %d, which is how many the model's "
                                 "embeddings have, got %lld",
                                 hidden_size, (long long)dimensions);
    return status == STATUS_OK;
}

static enum status check_dimensions(const struct pooling_config *config,
                                    const struct serve_options *options,
                                    const struct model_config *model, struct error *err)
{
    const struct str_list *names = &options->served_model_names;
    const char *name = names->len > 0 ? names->items[0] : options->model;
    if (config->dimensions == 0 || pooling_config_allows(config, config->dimensions,
                                                         model->hidden_size, name ? name : "", err))
        return STATUS_OK;
    error_prefix(err, "%s", POOLER_CONFIG);
    return STATUS_INVALID;
}

enum status pooling_config_load(struct pooling_config *config, const struct serve_options *options,
                                const struct model_config *model, struct error *err)
{
    *config = (struct pooling_config){.use_activation = true};
    bool converts = options->convert == CONVERT_EMBED;
    bool pools = options->runner == RUNNER_POOLING || converts;
    if (options->runner != RUNNER_GENERATE)
        TRY(read_sentence_transformers(config, model->path, err));
    if (!pools && config->type == POOLING_NONE) {
        if (options->pooler_config)
            return error_set_field(err, STATUS_INVALID, POOLER_CONFIG,
                                   "%s is for pooling models, and this one generates: expected "
                                   "--runner pooling",
                                   POOLER_CONFIG);
    } else if (config->type == POOLING_NONE) {
        config->type = POOLING_LAST;
    } else if (!pools) {
        log_info("Found sentence-transformers modules configuration: the model pools");
    }
    TRY(read_matryoshka(config, model, err));
    TRY(read_overrides(config, options->hf_overrides, err));
    config->is_matryoshka |= config->num_matryoshka_dimensions > 0;
    if (config->type == POOLING_NONE)
        return STATUS_OK;
    TRY(read_pooler_config(config, options->pooler_config, err));
    return check_dimensions(config, options, model, err);
}
