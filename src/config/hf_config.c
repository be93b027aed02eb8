// config.json into the facts that every decoder needs.
//
// A configuration may nest its language model under "text_config"; a key is looked for there first
// and at the top next. Unknown keys are nobody's business and are left alone. Every number is
// bounded before it can become a size.
#include "config/hf_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "config/hf_generation.h"
#include "config/hf_json.h"
#include "config/hf_quantization.h"
#include "config/hf_rope.h"

enum {
    MAX_VOCAB_SIZE = 1 << 24,
    MAX_HIDDEN_SIZE = 1 << 18,
    MAX_INTERMEDIATE_SIZE = 1 << 22,
    MAX_LAYERS = 4096,
    MAX_HEADS = 8192,
    MAX_HEAD_DIM = 8192,
    MAX_HEADS_DIM = 1 << 20, // heads times head_dim
    MAX_KEY_BYTES = 128,
    MAX_LIST = 65536,
    MAX_KEY_DEPTH = 8,
    DEFAULT_MAX_MODEL_LEN = 2048,
};

struct hf_config {
    json_t *root;
    struct hf_json json; // text_config (or the root), then the root
    struct quantization *quantization;
};

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static enum status parse_identity(struct model_config *config, const struct hf_json *json,
                                  const json_t *root, struct error *err)
{
    struct hf_json top = {json->name, root, NULL};
    const json_t *architectures = hf_json_find(&top, "architectures");
    if (!architectures)
        return error_set_field(err, STATUS_INVALID, "architectures",
                               "%s: \"architectures\" is missing, expected a list such as "
                               "[\"Qwen3ForCausalLM\"]",
                               json->name);
    const json_t *first = json_array_get(architectures, 0);
    if (!json_is_string(first) || json_string_length(first) == 0)
        return hf_json_wrong(json, "architectures", architectures,
                             "a list such as [\"Qwen3ForCausalLM\"]", err);
    config->architecture = arena_strdup(&config->arena, str_from(json_string_value(first)));

    const char *model_type = "";
    TRY(hf_json_string(&top, "model_type", HF_JSON_OPTIONAL, &model_type, err));
    config->model_type = arena_strdup(&config->arena, str_from(model_type));

    bool is_encoder_decoder = false;
    TRY(hf_json_bool(&top, "is_encoder_decoder", &is_encoder_decoder, err));
    if (is_encoder_decoder)
        return error_set_field(err, STATUS_UNSUPPORTED, "is_encoder_decoder",
                               "%s: %.64s is an encoder-decoder model, which is not supported",
                               json->name, config->architecture);
    return STATUS_OK;
}

/** GPT-2 and its like spell every size differently: better one clear sentence than "missing". */
static enum status refuse_old_names(const struct model_config *config, const struct hf_json *json,
                                    struct error *err)
{
    static const char *const keys[] = {"n_embd", "n_head", "n_layer", "d_model", "num_heads"};
    if (hf_json_find(json, "hidden_size"))
        return STATUS_OK;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (hf_json_find(json, keys[i]))
            return error_set_field(err, STATUS_UNSUPPORTED, keys[i],
                                   "%s: %.64s gives its sizes as \"%s\" and the like, expected "
                                   "\"hidden_size\": models of this family are not supported",
                                   json->name, config->architecture, keys[i]);
    }
    return STATUS_OK;
}

static enum status parse_dtype(struct model_config *config, const struct hf_json *json,
                               struct error *err)
{
    config->dtype = DTYPE_F32;
    const char *key = hf_json_find(json, "dtype") ? "dtype" : "torch_dtype";
    const char *name = NULL;
    TRY(hf_json_string(json, key, HF_JSON_OPTIONAL, &name, err));
    if (name && dtype_parse(str_from(name), &config->dtype) != STATUS_OK)
        return hf_json_wrong(json, key, hf_json_find(json, key),
                             "\"bfloat16\", \"float16\" or \"float32\"", err);
    return STATUS_OK;
}

static enum status parse_sizes(struct model_config *config, const struct hf_json *json,
                               struct error *err)
{
    const struct {
        const char *key;
        int64_t max;
        int32_t *out;
    } sizes[] = {
        {"vocab_size", MAX_VOCAB_SIZE, &config->vocab_size},
        {"hidden_size", MAX_HIDDEN_SIZE, &config->hidden_size},
        {"intermediate_size", MAX_INTERMEDIATE_SIZE, &config->intermediate_size},
        {"num_hidden_layers", MAX_LAYERS, &config->num_hidden_layers},
        {"num_attention_heads", MAX_HEADS, &config->num_attention_heads},
    };
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        TRY(hf_json_int(json, sizes[i].key, 1, sizes[i].max, HF_JSON_REQUIRED, sizes[i].out, err));

    int32_t num_heads = config->num_attention_heads;
    config->num_key_value_heads = num_heads;
    TRY(hf_json_int(json, "num_key_value_heads", 1, MAX_HEADS, HF_JSON_OPTIONAL,
                    &config->num_key_value_heads, err));
    if (num_heads % config->num_key_value_heads != 0)
        return error_set_field(err, STATUS_INVALID, "num_key_value_heads",
                               "%s: \"num_key_value_heads\" is %d, expected a divisor of "
                               "\"num_attention_heads\", which is %d",
                               json->name, config->num_key_value_heads, num_heads);

    TRY(hf_json_int(json, "head_dim", 1, MAX_HEAD_DIM, HF_JSON_OPTIONAL, &config->head_dim, err));
    if (config->head_dim == 0) {
        if (config->hidden_size % num_heads != 0)
            return error_set_field(err, STATUS_INVALID, "head_dim",
                                   "%s: without \"head_dim\", \"hidden_size\" (%d) must be a "
                                   "multiple of \"num_attention_heads\" (%d)",
                                   json->name, config->hidden_size, num_heads);
        config->head_dim = config->hidden_size / num_heads;
    }
    if ((int64_t)num_heads * config->head_dim > MAX_HEADS_DIM)
        return error_set_field(err, STATUS_INVALID, "head_dim",
                               "%s: %d heads of %d dimensions are %lld, expected at most %d",
                               json->name, num_heads, config->head_dim,
                               (long long)num_heads * config->head_dim, MAX_HEADS_DIM);
    return hf_json_int(json, "max_position_embeddings", 1, INT32_MAX, HF_JSON_OPTIONAL,
                       &config->max_position_embeddings, err);
}

static enum status parse_details(struct model_config *config, const struct hf_json *json,
                                 struct error *err)
{
    config->rms_norm_eps = 1e-6;
    TRY(hf_json_double(json, "rms_norm_eps", 1e-30, 1, HF_JSON_OPTIONAL, &config->rms_norm_eps,
                       err));
    const char *act = "silu";
    TRY(hf_json_string(json, "hidden_activation", HF_JSON_OPTIONAL, &act, err));
    TRY(hf_json_string(json, "hidden_act", HF_JSON_OPTIONAL, &act, err));
    config->hidden_act = arena_strdup(&config->arena, str_from(act));

    TRY(hf_json_bool(json, "bias", &config->attention_bias, err)); // some Llama derivatives
    TRY(hf_json_bool(json, "attention_bias", &config->attention_bias, err));
    TRY(hf_json_bool(json, "mlp_bias", &config->mlp_bias, err));
    config->tie_word_embeddings = has_prefix(config->model_type, "gemma");
    TRY(hf_json_bool(json, "tie_word_embeddings", &config->tie_word_embeddings, err));

    config->bos_token_id = -1;
    struct hf_json bos = *json;
    const json_t *value = hf_json_find(json, "bos_token_id");
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_integer(value))
        return hf_json_wrong(&bos, "bos_token_id", value, "a token id", err);
    json_int_t id = json_integer_value(value);
    if (id >= 0 && id < config->vocab_size)
        config->bos_token_id = (int32_t)id;
    else
        log_warning("%s: \"bos_token_id\" %" JSON_INTEGER_FORMAT
                    " is outside the vocabulary of %d tokens and is ignored",
                    json->name, id, config->vocab_size);
    return STATUS_OK;
}

static enum status windows_by_layer_type(struct model_config *config, const struct hf_json *json,
                                         const json_t *types, int32_t window, int32_t *windows,
                                         struct error *err)
{
    if (!json_is_array(types) || json_array_size(types) != (size_t)config->num_hidden_layers) {
        char expected[64];
        snprintf(expected, sizeof(expected), "a list of %d layer types", config->num_hidden_layers);
        return hf_json_wrong(json, "layer_types", types, expected, err);
    }
    for (int32_t i = 0; i < config->num_hidden_layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        const char *name = json_string_value(type);
        if (name && strcmp(name, "full_attention") == 0) {
            windows[i] = 0;
        } else if (name && strcmp(name, "sliding_attention") == 0) {
            if (window == 0)
                return error_set_field(err, STATUS_INVALID, "sliding_window",
                                       "%s: \"layer_types\" has sliding_attention at layer %d, "
                                       "but \"sliding_window\" is not given or switched off",
                                       json->name, i);
            windows[i] = window;
        } else if (name) {
            return error_set_field(err, STATUS_UNSUPPORTED, "layer_types",
                                   "%s: layer type \"%.64s\" is not supported, expected "
                                   "full_attention or sliding_attention",
                                   json->name, name);
        } else {
            return hf_json_wrong(json, "layer_types", type, "a list of strings", err);
        }
    }
    return STATUS_OK;
}

/**
 * Which layers see a window only. "layer_types" says it outright; else Qwen slides from layer
 * max_window_layers on where use_sliding_window is set, Gemma alternates, and the others (Mistral)
 * slide everywhere.
 */
static enum status parse_windows(struct model_config *config, const struct hf_json *json,
                                 struct error *err)
{
    bool is_qwen = has_prefix(config->model_type, "qwen");
    bool is_gemma2 = has_prefix(config->model_type, "gemma2");
    bool is_gemma3 = has_prefix(config->model_type, "gemma3");
    bool slides = !is_qwen;
    TRY(hf_json_bool(json, "use_sliding_window", &slides, err));
    int32_t window = 0;
    TRY(hf_json_int(json, "sliding_window", 1, INT32_MAX, HF_JSON_OPTIONAL, &window, err));
    if (!slides)
        window = 0;

    int32_t first = 0;
    if (is_qwen) {
        first = 28;
        TRY(hf_json_int(json, "max_window_layers", 0, INT32_MAX, HF_JSON_OPTIONAL, &first, err));
    }
    int32_t pattern = is_gemma2 ? 2 : is_gemma3 ? 6 : 0; // every n-th layer is full
    TRY(hf_json_int(json, "sliding_window_pattern", 1, MAX_LAYERS, HF_JSON_OPTIONAL, &pattern,
                    err));

    int32_t *windows = arena_array(&config->arena, int32_t, config->num_hidden_layers);
    config->layer_windows = windows;
    const json_t *types = hf_json_find(json, "layer_types");
    if (types)
        return windows_by_layer_type(config, json, types, window, windows, err);
    for (int32_t i = 0; i < config->num_hidden_layers; i++) {
        bool is_full = i < first || (pattern > 0 && (i + 1) % pattern == 0);
        windows[i] = is_full ? 0 : window;
    }
    return STATUS_OK;
}

static enum status parse_all(struct model_config *config, json_t *root, const char *name,
                             struct error *err)
{
    struct hf_config *raw = arena_calloc(&config->arena, 1, sizeof(*raw));
    raw->root = root;
    raw->json = (struct hf_json){arena_strdup(&config->arena, str_from(name)), root, NULL};
    config->raw = raw;
    const json_t *text = NULL;
    TRY(hf_json_object(&raw->json, "text_config", &text, err));
    if (text) {
        raw->json.object = text;
        raw->json.fallback = root;
    }

    const struct hf_json *json = &raw->json;
    TRY(parse_identity(config, json, root, err));
    TRY(hf_quantization_parse(&raw->quantization, json, &config->arena, err));
    config->quantization = raw->quantization;
    TRY(refuse_old_names(config, json, err));
    TRY(parse_dtype(config, json, err));
    TRY(parse_sizes(config, json, err));
    TRY(parse_details(config, json, err));
    TRY(parse_windows(config, json, err));
    TRY(hf_rope_parse(config, json, err));
    return hf_eos_add(config, json, err);
}

enum status model_config_parse(struct model_config *config, struct str text, const char *name,
                               struct error *err)
{
    *config = (struct model_config){0};
    json_t *root = NULL;
    TRY(hf_json_parse_object(&root, text, name, err));
    enum status status = parse_all(config, root, name, err);
    if (status != STATUS_OK)
        model_config_deinit(config);
    return status;
}

enum status model_config_load(struct model_config *config, const char *dir, const char *generation,
                              const char *override_json, struct error *err)
{
    *config = (struct model_config){0};
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/config.json", dir) >= (int)sizeof(path))
        return error_set(err, STATUS_INVALID, "the model's path is longer than %zu bytes",
                         sizeof(path) - sizeof("/config.json"));
    struct mapped_file file;
    TRY(mapped_file_open(&file, path, err));
    enum status status = model_config_parse(config, mapped_file_str(&file), path, err);
    mapped_file_close(&file);
    TRY(status);
    config->path = arena_strdup(&config->arena, str_from(dir));
    status = hf_generation_load(config, generation ? generation : "auto", override_json, err);
    if (status != STATUS_OK)
        model_config_deinit(config);
    return status;
}

void model_config_deinit(struct model_config *config)
{
    if (!config)
        return;
    if (config->raw) {
        hf_quantization_destroy(config->raw->quantization);
        json_decref(config->raw->root);
    }
    arena_deinit(&config->arena);
    *config = (struct model_config){0};
}

/** The object that holds the last part of "a.b.c", and that part; false when it is not there. */
static bool descend(const struct model_config *config, const char *key, struct hf_json *json,
                    char *last, struct error *err, enum status *status)
{
    *json = config->raw->json;
    *status = STATUS_OK;
    struct str rest = str_from(key);
    for (int depth = 0; depth < MAX_KEY_DEPTH; depth++) {
        bool is_last = str_find(rest, STR("."), 0) == STR_NOT_FOUND;
        struct str part = str_split(&rest, '.');
        snprintf(last, MAX_KEY_BYTES, STR_FORMAT, STR_ARG(part));
        if (is_last)
            return true;
        const json_t *object = NULL;
        *status = hf_json_object(json, last, &object, err);
        if (*status != STATUS_OK || !object)
            return false;
        *json = (struct hf_json){json->name, object, NULL};
    }
    return false;
}

enum status hf_config_get_int(const struct model_config *config, const char *key, int32_t *out,
                              struct error *err)
{
    struct hf_json json;
    char last[MAX_KEY_BYTES];
    enum status status;
    if (!descend(config, key, &json, last, err, &status))
        return status;
    return hf_json_int(&json, last, INT32_MIN, INT32_MAX, HF_JSON_OPTIONAL, out, err);
}

enum status hf_config_get_double(const struct model_config *config, const char *key, double *out,
                                 struct error *err)
{
    struct hf_json json;
    char last[MAX_KEY_BYTES];
    enum status status;
    if (!descend(config, key, &json, last, err, &status))
        return status;
    return hf_json_double(&json, last, -HUGE_VAL, HUGE_VAL, HF_JSON_OPTIONAL, out, err);
}

enum status hf_config_get_bool(const struct model_config *config, const char *key, bool *out,
                               struct error *err)
{
    struct hf_json json;
    char last[MAX_KEY_BYTES];
    enum status status;
    if (!descend(config, key, &json, last, err, &status))
        return status;
    return hf_json_bool(&json, last, out, err);
}

enum status hf_config_get_ints(const struct model_config *config, const char *key, int32_t min,
                               int32_t max, int32_t **out, int32_t *count, struct error *err)
{
    struct hf_json json;
    char last[MAX_KEY_BYTES];
    enum status status;
    if (!descend(config, key, &json, last, err, &status))
        return status;
    const json_t *list = hf_json_find(&json, last);
    if (!list)
        return STATUS_OK;
    char expected[80];
    snprintf(expected, sizeof(expected), "a list of integers from %d to %d", min, max);
    if (!json_is_array(list) || json_array_size(list) > MAX_LIST)
        return hf_json_wrong(&json, last, list, expected, err);
    int32_t num = (int32_t)json_array_size(list);
    int32_t *values = xcalloc((size_t)num + 1, sizeof(*values));
    for (int32_t i = 0; i < num && status == STATUS_OK; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < min || value > max)
            status = hf_json_wrong(&json, last, list, expected, err);
        else
            values[i] = (int32_t)value;
    }
    if (status == STATUS_OK) {
        *out = values;
        *count = num;
    } else {
        free(values);
    }
    return status;
}

bool hf_config_is_null(const struct model_config *config, const char *key)
{
    struct hf_json json;
    char last[MAX_KEY_BYTES];
    enum status status;
    return descend(config, key, &json, last, NULL, &status) && status == STATUS_OK &&
           json_is_null(json_object_get(json.object, last));
}

/** The smallest of the keys that models use for their length; 0 when none is there. */
static int64_t smallest_known_len(const struct model_config *config)
{
    static const char *const keys[] = {
        "max_position_embeddings", "n_positions",    "max_seq_len",         "seq_length",
        "model_max_length",        "max_seq_length", "max_sequence_length", "seq_len",
    };
    int64_t smallest = 0;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const json_t *value = hf_json_find(&config->raw->json, keys[i]);
        int64_t len = json_is_integer(value) ? json_integer_value(value) : 0;
        if (len > 0 && (smallest == 0 || len < smallest))
            smallest = len;
    }
    return smallest;
}

int32_t model_config_derived_max_len(const struct model_config *config, int64_t tokenizer_max_len)
{
    const struct rope_config *rope = &config->rope;
    int64_t len = smallest_known_len(config);
    if (tokenizer_max_len > 0 && (len == 0 || tokenizer_max_len < len))
        len = tokenizer_max_len;
    if (len == 0)
        len = DEFAULT_MAX_MODEL_LEN;
    if (rope->type == ROPE_YARN)
        len = rope->original_max_position_embeddings;
    bool multiplies =
        (rope->type == ROPE_YARN || rope->type == ROPE_LINEAR || rope->type == ROPE_DYNAMIC) &&
        !has_prefix(config->model_type, "gemma3");
    double stretched = multiplies ? floor((double)len * rope->factor) : (double)len;
    if (stretched < 1)
        return 1;
    return stretched > INT32_MAX ? INT32_MAX : (int32_t)stretched;
}

int32_t model_config_default_max_len(const struct model_config *config, int64_t tokenizer_max_len)
{
    int32_t derived = model_config_derived_max_len(config, tokenizer_max_len);
    if (config->rope.type == ROPE_LONGROPE)
        return min_i32(derived, config->rope.original_max_position_embeddings);
    return derived;
}
