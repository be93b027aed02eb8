// How checkpoints say that their linear layers are in eight bits: quant_method "fp8", and
// "compressed-tensors" with weights of float 8. Everything else is refused by name: a weight that
// is read in another way than it was written gives nonsense, not an error.
#include "config/hf_quantization.h"

#include <string.h>

#include "base/memory.h"
#include "config/module_pattern.h"

enum { BLOCK = 128, MAX_GROUPS = 64 };

/** Modules and how they are stored. */
struct quant_group {
    struct module_patterns targets;
    struct quant_scheme scheme;
};

struct quantization {
    const char *method;
    bool is_online, has_fp8_cache;
    struct module_patterns ignored;
    const struct quant_group *groups;
    size_t num_groups;
    bool names_no_targets; // the first group is for every linear layer
};

/** What is being read, for messages. */
struct reader {
    struct hf_json json;
    const char *key; // "quantization_config"
    struct arena *arena;
};

static enum status refuse(const struct reader *r, const char *what, const char *found,
                          const char *expected, struct error *err)
{
    return error_set_field(err, STATUS_UNSUPPORTED, r->key,
                           "%s: \"%s\" has %s %.64s, which is not supported: expected %s",
                           r->json.name, r->key, what, found, expected);
}

/** Refuses a key that has another value than the one text, or than null. */
static enum status expect_text(const struct reader *r, const struct hf_json *json, const char *key,
                               const char *only, struct error *err)
{
    const char *text = NULL;
    TRY(hf_json_string(json, key, HF_JSON_OPTIONAL, &text, err));
    if (text && strcmp(text, only) != 0)
        return refuse(r, key, text, only, err);
    return STATUS_OK;
}

static enum status expect_null(const struct reader *r, const struct hf_json *json, const char *key,
                               struct error *err)
{
    const json_t *value = hf_json_find(json, key);
    if (!value || (json_is_object(value) && json_object_size(value) == 0))
        return STATUS_OK;
    struct buf found = {0};
    hf_json_describe(&found, value);
    enum status status =
        error_set_field(err, STATUS_UNSUPPORTED, r->key,
                        "%s: \"%s\" has \"%s\" " STR_FORMAT ", which is not supported",
                        r->json.name, r->key, key, STR_ARG(buf_str(&found)));
    buf_deinit(&found);
    return status;
}

/** Two numbers that have to be 128; false when the key is absent. */
static enum status read_block(const struct hf_json *json, const char *key, bool *is_there,
                              struct error *err)
{
    int32_t sides[2] = {0}, count = 0;
    TRY(hf_json_ints(json, key, 1, INT32_MAX, 2, sides, &count, err));
    *is_there = hf_json_find(json, key) != NULL;
    if (*is_there && (count != 2 || sides[0] != BLOCK || sides[1] != BLOCK))
        return error_set_field(err, STATUS_UNSUPPORTED, key,
                               "%s: \"%s\" is [%d, %d], which is not supported: expected "
                               "[%d, %d]",
                               json->name, key, sides[0], sides[1], BLOCK, BLOCK);
    return STATUS_OK;
}

// ---- quant_method "fp8" --------------------------------------------------------------------

static enum status parse_fp8(struct quantization *q, const struct reader *r, struct error *err)
{
    const struct hf_json *json = &r->json;
    struct quant_group *group = arena_calloc(r->arena, 1, sizeof(*group));
    bool is_block = false;
    const char *activations = "dynamic";
    TRY(hf_json_string(json, "activation_scheme", HF_JSON_OPTIONAL, &activations, err));
    if (strcmp(activations, "dynamic") != 0 && strcmp(activations, "static") != 0)
        return refuse(r, "activation_scheme", activations, "dynamic or static", err);
    bool is_static = strcmp(activations, "static") == 0;
    TRY(expect_text(r, json, "fmt", "e4m3", err));
    TRY(expect_text(r, json, "scale_fmt", "ue8m0", err));
    TRY(expect_null(r, json, "store_dtype", err));
    TRY(read_block(json, "weight_block_size", &is_block, err));
    if (is_block && is_static)
        return refuse(r, "activation_scheme", activations, "dynamic with weight_block_size", err);
    group->scheme = (struct quant_scheme){
        .strategy = is_block ? QUANT_BLOCK : QUANT_TENSOR,
        .activations = is_static ? QUANT_ACTIVATIONS_STATIC : QUANT_ACTIVATIONS_DYNAMIC,
        .scale_name = is_block ? "weight_scale_inv" : "weight_scale",
    };
    q->groups = group;
    q->num_groups = 1;
    q->names_no_targets = true;
    const char *ignored =
        hf_json_find(json, "ignored_layers") ? "ignored_layers" : "modules_to_not_convert";
    return module_patterns_parse(&q->ignored, json, ignored, r->arena, err);
}

// ---- compressed-tensors --------------------------------------------------------------------

/** What "weights" and "input_activations" say alike. */
struct quant_args {
    int32_t num_bits;
    const char *type, *strategy;
    bool is_symmetric, is_dynamic, is_block;
    int32_t group_size;
};

static enum status read_args(struct quant_args *args, const struct reader *r,
                             const struct hf_json *json, struct error *err)
{
    *args = (struct quant_args){
        .num_bits = 8, .type = "int", .strategy = "tensor", .is_symmetric = true};
    TRY(hf_json_int(json, "num_bits", 1, 64, HF_JSON_OPTIONAL, &args->num_bits, err));
    TRY(hf_json_string(json, "type", HF_JSON_OPTIONAL, &args->type, err));
    TRY(hf_json_string(json, "strategy", HF_JSON_OPTIONAL, &args->strategy, err));
    TRY(hf_json_bool(json, "symmetric", &args->is_symmetric, err));
    TRY(hf_json_bool(json, "dynamic", &args->is_dynamic, err));
    TRY(hf_json_int(json, "group_size", -1, INT32_MAX, HF_JSON_OPTIONAL, &args->group_size, err));
    TRY(read_block(json, "block_structure", &args->is_block, err));
    if (args->num_bits != 8 || strcmp(args->type, "float") != 0) {
        char found[64];
        snprintf(found, sizeof(found), "%d-bit %.16s", args->num_bits, args->type);
        return refuse(r, "numbers of", found, "8-bit float", err);
    }
    if (!args->is_symmetric)
        return refuse(r, "symmetric", "false", "true", err);
    return STATUS_OK;
}

static enum status read_strategy(enum quant_strategy *out, const struct reader *r,
                                 const struct quant_args *args, struct error *err)
{
    static const struct {
        const char *name;
        enum quant_strategy strategy;
    } NAMES[] = {{"tensor", QUANT_TENSOR}, {"channel", QUANT_CHANNEL}, {"block", QUANT_BLOCK}};
    if (args->is_dynamic)
        return refuse(r, "weights with dynamic", "true", "false", err);
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (strcmp(args->strategy, NAMES[i].name) != 0)
            continue;
        *out = NAMES[i].strategy;
        if (*out == QUANT_BLOCK && !args->is_block)
            return refuse(r, "strategy", "block without block_structure", "[128, 128]", err);
        return STATUS_OK;
    }
    return refuse(r, "weights with strategy", args->strategy, "tensor, channel or block", err);
}

static enum status read_activations(struct quant_scheme *scheme, const struct reader *r,
                                    const struct hf_json *group, struct error *err)
{
    const json_t *value = NULL;
    struct quant_args args;
    scheme->activations = QUANT_ACTIVATIONS_KEPT;
    TRY(hf_json_object(group, "input_activations", &value, err));
    if (!value)
        return STATUS_OK;
    TRY(read_args(&args, r, &(struct hf_json){r->json.name, value, NULL}, err));
    bool is_token = strcmp(args.strategy, "token") == 0;
    bool is_group = strcmp(args.strategy, "group") == 0 && args.group_size == BLOCK;
    bool is_tensor = strcmp(args.strategy, "tensor") == 0;
    if (scheme->strategy == QUANT_BLOCK ? is_group && args.is_dynamic : is_token && args.is_dynamic)
        scheme->activations = QUANT_ACTIVATIONS_DYNAMIC;
    else if (scheme->strategy != QUANT_BLOCK && is_tensor && !args.is_dynamic)
        scheme->activations = QUANT_ACTIVATIONS_STATIC;
    else
        return refuse(r,
                      args.is_dynamic ? "dynamic input_activations with strategy"
                                      : "static input_activations with strategy",
                      args.strategy,
                      scheme->strategy == QUANT_BLOCK
                          ? "dynamic ones by groups of 128, as weights are by blocks"
                          : "dynamic ones by token or static ones by tensor",
                      err);
    return STATUS_OK;
}

static enum status check_format(const struct reader *r, const struct hf_json *json,
                                struct error *err)
{
    const char *format = "float-quantized";
    TRY(hf_json_string(json, "format", HF_JSON_OPTIONAL, &format, err));
    if (strcmp(format, "float-quantized") != 0 && strcmp(format, "naive-quantized") != 0)
        return refuse(r, "format", format, "float-quantized or naive-quantized", err);
    return STATUS_OK;
}

static enum status parse_group(struct quant_group *group, const struct reader *r,
                               const json_t *value, struct error *err)
{
    const struct hf_json json = {r->json.name, value, NULL};
    const json_t *weights = NULL;
    struct quant_args args;
    TRY(module_patterns_parse(&group->targets, &json, "targets", r->arena, err));
    TRY(check_format(r, &json, err));
    TRY(expect_null(r, &json, "output_activations", err));
    TRY(hf_json_object(&json, "weights", &weights, err));
    if (!weights)
        return error_set_field(err, STATUS_INVALID, r->key,
                               "%s: a group of \"%s\" lacks \"weights\"", r->json.name, r->key);
    TRY(read_args(&args, r, &(struct hf_json){r->json.name, weights, NULL}, err));
    TRY(read_strategy(&group->scheme.strategy, r, &args, err));
    group->scheme.scale_name = "weight_scale";
    return read_activations(&group->scheme, r, &json, err);
}

static enum status parse_cache_scheme(struct quantization *q, const struct reader *r,
                                      struct error *err)
{
    const json_t *value = NULL;
    struct quant_args args;
    TRY(hf_json_object(&r->json, "kv_cache_scheme", &value, err));
    if (!value)
        return STATUS_OK;
    TRY(read_args(&args, r, &(struct hf_json){r->json.name, value, NULL}, err));
    if (args.is_dynamic || strcmp(args.strategy, "tensor") != 0)
        return refuse(r, args.is_dynamic ? "a dynamic kv_cache_scheme by" : "a kv_cache_scheme by",
                      args.strategy, "a static one by tensor", err);
    q->has_fp8_cache = true;
    return STATUS_OK;
}

static enum status parse_compressed(struct quantization *q, const struct reader *r,
                                    struct error *err)
{
    const json_t *groups = NULL, *sparsity = NULL, *value;
    const char *name;
    TRY(expect_null(r, &r->json, "transform_config", err));
    TRY(hf_json_object(&r->json, "sparsity_config", &sparsity, err));
    if (sparsity)
        TRY(expect_text(r, &(struct hf_json){r->json.name, sparsity, NULL}, "format", "dense",
                        err));
    TRY(hf_json_object(&r->json, "config_groups", &groups, err));
    if (!groups || json_object_size(groups) == 0 || json_object_size(groups) > MAX_GROUPS)
        return error_set_field(err, STATUS_INVALID, r->key,
                               "%s: \"%s\" has no \"config_groups\", expected 1 to %d of them",
                               r->json.name, r->key, MAX_GROUPS);
    struct quant_group *list = arena_calloc(r->arena, json_object_size(groups), sizeof(*list));
    q->groups = list;
    json_object_foreach((json_t *)(uintptr_t)groups, name, value)
    {
        if (!json_is_object(value))
            return hf_json_wrong(&r->json, name, value, "an object", err);
        TRY(parse_group(&list[q->num_groups++], r, value, err));
    }
    TRY(check_format(r, &r->json, err));
    TRY(parse_cache_scheme(q, r, err));
    return module_patterns_parse(&q->ignored, &r->json, "ignore", r->arena, err);
}

// ---- Which one -----------------------------------------------------------------------------

enum status hf_quantization_parse(struct quantization **out, const struct hf_json *json,
                                  struct arena *arena, struct error *err)
{
    static const char *const KEYS[] = {"quantization_config", "compression_config"};
    static const char METHODS[] = "fp8 or compressed-tensors; use another quantization of this "
                                  "model, or the original checkpoint";
    *out = NULL;
    for (size_t i = 0; i < ARRAY_LEN(KEYS); i++) {
        const json_t *value = NULL;
        TRY(hf_json_object(json, KEYS[i], &value, err));
        if (!value)
            continue;
        const struct reader r = {{json->name, value, NULL}, KEYS[i], arena};
        const char *method = "none";
        TRY(hf_json_string(&r.json, "quant_method", HF_JSON_OPTIONAL, &method, err));
        struct quantization *q = arena_calloc(arena, 1, sizeof(*q));
        q->method = method;
        *out = q;
        if (strcmp(method, "fp8") == 0)
            return parse_fp8(q, &r, err);
        if (strcmp(method, "compressed-tensors") == 0)
            return parse_compressed(q, &r, err);
        return refuse(&r, "quant_method", method, METHODS, err);
    }
    return STATUS_OK;
}

void hf_quantization_destroy(struct quantization *quantization)
{
    if (!quantization)
        return;
    module_patterns_deinit(&quantization->ignored);
    for (size_t i = 0; i < quantization->num_groups; i++)
        module_patterns_deinit(
            (struct module_patterns *)(uintptr_t)&quantization->groups[i].targets);
}

// ---- Use -----------------------------------------------------------------------------------

const char *quantization_method(const struct quantization *quantization)
{
    return quantization->method;
}

bool quantization_is_online(const struct quantization *quantization)
{
    return quantization && quantization->is_online;
}

bool quantization_has_fp8_cache(const struct quantization *quantization)
{
    return quantization && quantization->has_fp8_cache;
}

/** The path under which a layer goes that computes several projections at once; false: it computes
 *  one. */
static bool fused_path(char *out, size_t size, const char *module)
{
    static const char *const NAMES[][2] = {
        {"q_proj", "qkv_proj"},        {"k_proj", "qkv_proj"},      {"v_proj", "qkv_proj"},
        {"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"},
    };
    const char *dot = strrchr(module, '.');
    const char *last = dot ? dot + 1 : module;
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (strcmp(last, NAMES[i][0]) == 0)
            return snprintf(out, size, "%.*s%s", (int)(last - module), module, NAMES[i][1]) <
                   (int)size;
    }
    return false;
}

static bool matches(const struct module_patterns *patterns, const char *module)
{
    char fused[256];
    return module_patterns_match(patterns, module) ||
           (fused_path(fused, sizeof(fused), module) && module_patterns_match(patterns, fused));
}

const struct quant_scheme *quantization_scheme(const struct quantization *quantization,
                                               const char *module)
{
    // Output matrices stay in the model's dtype whether the file says so or not.
    if (!quantization || strcmp(module, "lm_head") == 0 || matches(&quantization->ignored, module))
        return NULL;
    for (size_t i = 0; i < quantization->num_groups; i++) { // names first, then classes
        if (matches(&quantization->groups[i].targets, module))
            return &quantization->groups[i].scheme;
    }
    for (size_t i = 0; i < quantization->num_groups; i++) {
        if (quantization->names_no_targets ||
            module_patterns_have(&quantization->groups[i].targets, "Linear"))
            return &quantization->groups[i].scheme;
    }
    return NULL;
}

// ---- --quantization ------------------------------------------------------------------------

#define ONLINE(METHOD, GROUP)                                                              \
    {                                                                                      \
        .method = METHOD, .is_online = true, .names_no_targets = true, .groups = &(GROUP), \
        .num_groups = 1                                                                    \
    }

static const struct quant_group PER_TENSOR = {.scheme = {QUANT_TENSOR, QUANT_ACTIVATIONS_DYNAMIC,
                                                         "weight_scale"}},
                                PER_CHANNEL = {.scheme = {QUANT_CHANNEL, QUANT_ACTIVATIONS_DYNAMIC,
                                                          "weight_scale"}},
                                PER_BLOCK = {.scheme = {QUANT_BLOCK, QUANT_ACTIVATIONS_DYNAMIC,
                                                        "weight_scale_inv"}};

/** For checkpoints that are not quantised. */
static const struct quantization ONLINE_METHODS[] = {
    ONLINE("fp8", PER_TENSOR),
    ONLINE("fp8_per_tensor", PER_TENSOR),
    ONLINE("fp8_per_channel", PER_CHANNEL),
    ONLINE("fp8_per_block", PER_BLOCK),
};

enum status quantization_choose(const struct quantization **out,
                                const struct quantization *checkpoint, const char *option,
                                struct error *err)
{
    *out = checkpoint;
    if (!option || (checkpoint && strcmp(option, checkpoint->method) == 0))
        return STATUS_OK;
    if (checkpoint)
        return error_set_field(err, STATUS_INVALID, "--quantization",
                               "Quantization method specified in the model config (%.64s) does not "
                               "match the quantization method specified in the `quantization` "
                               "argument (%.64s).",
                               checkpoint->method, option);
    for (size_t i = 0; i < ARRAY_LEN(ONLINE_METHODS); i++) {
        if (strcmp(option, ONLINE_METHODS[i].method) == 0) {
            *out = &ONLINE_METHODS[i];
            return STATUS_OK;
        }
    }
    if (strcmp(option, "compressed-tensors") == 0)
        return error_set_field(err, STATUS_INVALID, "--quantization",
                               "--quantization %s: the checkpoint's config.json has no "
                               "\"quantization_config\"",
                               option);
    return error_set_field(err, STATUS_UNSUPPORTED, "--quantization",
                           "--quantization %.64s is not supported: expected fp8, fp8_per_tensor, "
                           "fp8_per_channel, fp8_per_block or compressed-tensors",
                           option);
}
