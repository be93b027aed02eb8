// Rotary embedding settings. Checkpoints come in two spellings, read into one record:
//
//   old: rope_theta and partial_rotary_factor at the top, rope_scaling {"rope_type" or "type", ...}
//   new: rope_parameters {"rope_type", "rope_theta", ...}, or one such object per layer type
#include "config/hf_rope.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

static const double max_theta = 1e15;
static const double max_factor = 1e6;

static const struct {
    const char *name;
    enum rope_type type;
} rope_names[] = {
    {"default", ROPE_DEFAULT},
    {"mrope", ROPE_DEFAULT}, // text has equal positions on all three
                             // axes
    {"linear", ROPE_LINEAR},
    {"dynamic", ROPE_DYNAMIC},
    {"llama3", ROPE_LLAMA3},
    {"yarn", ROPE_YARN},
    {"deepseek_yarn", ROPE_YARN},
    {"longrope", ROPE_LONGROPE},
    {"su", ROPE_LONGROPE},
};

static enum status parse_type(struct rope_config *rope, const struct hf_json *json, bool required,
                              struct error *err)
{
    const char *name = NULL;
    TRY(hf_json_string(json, "rope_type", HF_JSON_OPTIONAL, &name, err));
    if (!name)
        TRY(hf_json_string(json, "type", required ? HF_JSON_REQUIRED : HF_JSON_OPTIONAL, &name,
                           err));
    if (!name)
        return STATUS_OK;
    for (size_t i = 0; i < ARRAY_LEN(rope_names); i++) {
        if (strcmp(name, rope_names[i].name) == 0) {
            rope->type = rope_names[i].type;
            return STATUS_OK;
        }
    }
    return error_set_field(err, STATUS_UNSUPPORTED, "rope_type",
                           "%s: rope type \"%.64s\" is not supported, expected default, linear, "
                           "dynamic, llama3, yarn or longrope",
                           json->name, name);
}

static enum status parse_llama3(struct rope_config *rope, const struct hf_json *json,
                                struct error *err)
{
    TRY(hf_json_double(json, "low_freq_factor", 1e-6, max_factor, HF_JSON_REQUIRED,
                       &rope->low_freq_factor, err));
    TRY(hf_json_double(json, "high_freq_factor", 1e-6, max_factor, HF_JSON_REQUIRED,
                       &rope->high_freq_factor, err));
    if (rope->high_freq_factor <= rope->low_freq_factor) // the ramp between them divides by this
        return error_set_field(err, STATUS_INVALID, "high_freq_factor",
                               "%s: \"high_freq_factor\" is %g, expected more than "
                               "\"low_freq_factor\", which is %g",
                               json->name, rope->high_freq_factor, rope->low_freq_factor);
    return STATUS_OK;
}

static enum status parse_yarn(struct rope_config *rope, const struct hf_json *json,
                              struct error *err)
{
    TRY(hf_json_double(json, "beta_fast", 1e-6, max_factor, HF_JSON_OPTIONAL, &rope->beta_fast,
                       err));
    TRY(hf_json_double(json, "beta_slow", 1e-6, max_factor, HF_JSON_OPTIONAL, &rope->beta_slow,
                       err));
    TRY(hf_json_bool(json, "truncate", &rope->truncate, err));
    TRY(hf_json_double(json, "mscale", 0, max_factor, HF_JSON_OPTIONAL, &rope->mscale, err));
    TRY(hf_json_double(json, "mscale_all_dim", 0, max_factor, HF_JSON_OPTIONAL,
                       &rope->mscale_all_dim, err));
    double attn_factor = -1; // multiplies the derived magnitude; attention_factor replaces it
    TRY(hf_json_double(json, "attn_factor", 0, max_factor, HF_JSON_OPTIONAL, &attn_factor, err));
    if (attn_factor >= 0)
        rope->attention_factor = attn_factor * (rope->factor > 1 ? 0.1 * log(rope->factor) + 1 : 1);
    return hf_json_double(json, "attention_factor", 0, max_factor, HF_JSON_OPTIONAL,
                          &rope->attention_factor, err);
}

static enum status parse_factors(const double **out, int32_t count, struct model_config *config,
                                 const struct hf_json *json, const char *key, struct error *err)
{
    char expected[96];
    snprintf(expected, sizeof(expected), "a list of %d numbers above 0", count);
    const json_t *list = hf_json_find(json, key);
    if (!list)
        return error_set_field(err, STATUS_INVALID, key, "%s: \"%s\" is missing, expected %s",
                               json->name, key, expected);
    if (!json_is_array(list) || json_array_size(list) != (size_t)count)
        return hf_json_wrong(json, key, list, expected, err);
    double *factors = arena_array(&config->arena, double, count);
    for (int32_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        factors[i] = json_number_value(item);
        if (!json_is_number(item) || !(factors[i] > 0 && factors[i] <= max_factor))
            return hf_json_wrong(json, key, item, "only numbers above 0 in the list", err);
    }
    *out = factors;
    return STATUS_OK;
}

static enum status parse_longrope(struct model_config *config, struct rope_config *rope,
                                  const struct hf_json *json, struct error *err)
{
    int32_t num_pairs = (int32_t)(config->head_dim * rope->partial_rotary_factor) / 2;
    rope->num_factors = num_pairs;
    TRY(parse_factors(&rope->short_factor, num_pairs, config, json, "short_factor", err));
    TRY(parse_factors(&rope->long_factor, num_pairs, config, json, "long_factor", err));
    if (!hf_json_find(json, "factor") && config->max_position_embeddings > 0)
        rope->factor =
            (double)config->max_position_embeddings / rope->original_max_position_embeddings;
    return hf_json_double(json, "attention_factor", 0, max_factor, HF_JSON_OPTIONAL,
                          &rope->attention_factor, err);
}

/** One object for all layers, or one per layer type, of which two may differ: that of layers that
 *  see everything and that of those that slide. */
static enum status pick_parameters(const json_t **full, const json_t **sliding,
                                   const struct hf_json *json, struct error *err)
{
    const json_t *value = NULL;
    TRY(hf_json_object(json, "rope_parameters", &value, err));
    *full = *sliding = value;
    const json_t *full_item = json_object_get(value, "full_attention");
    const json_t *sliding_item = json_object_get(value, "sliding_attention");
    if (json_is_object(full_item) && json_is_object(sliding_item)) {
        *full = full_item;
        *sliding = sliding_item;
        return STATUS_OK;
    }
    const char *key;
    json_t *item;
    const json_t *first = NULL;
    json_object_foreach((json_t *)(uintptr_t)value, key, item)
    {
        if (!json_is_object(item))
            continue;
        if (first && !json_equal(first, item))
            return error_set_field(err, STATUS_UNSUPPORTED, "rope_parameters",
                                   "%s: \"rope_parameters\" differ between layer types other "
                                   "than full_attention and sliding_attention, which is not "
                                   "supported",
                                   json->name);
        first = item;
        *full = *sliding = item;
    }
    return STATUS_OK;
}

static double default_theta(const char *model_type)
{
    static const char *const million[] = {"qwen2", "qwen3", "gemma3", "mixtral"};
    for (size_t i = 0; i < ARRAY_LEN(million); i++) {
        if (strncmp(model_type, million[i], strlen(million[i])) == 0)
            return 1e6;
    }
    return 1e4;
}

/** One record: `from` (NULL: nothing but what stands at the top), as "rope_parameters" or as
 *  "rope_scaling". */
static enum status parse_record(struct model_config *config, struct rope_config *rope,
                                const struct hf_json *json, const json_t *from, bool is_parameters,
                                struct error *err)
{
    *rope = (struct rope_config){
        .type = ROPE_DEFAULT,
        .theta = default_theta(config->model_type),
        .partial_rotary_factor = 1,
        .factor = 1,
        .beta_fast = 32,
        .beta_slow = 1,
        .truncate = true,
        .attention_factor = -1,
    };
    // What the record lacks may stand at the top, whichever spelling it is.
    struct hf_json own = {json->name, from, NULL};
    struct hf_json merged = {json->name, from ? from : json->object, json->object};

    TRY(hf_json_double(&merged, "rope_theta", 1, max_theta, HF_JSON_OPTIONAL, &rope->theta, err));
    TRY(hf_json_double(&merged, "rotary_pct", 1e-3, 1, HF_JSON_OPTIONAL,
                       &rope->partial_rotary_factor, err));
    TRY(hf_json_double(&merged, "partial_rotary_factor", 1e-3, 1, HF_JSON_OPTIONAL,
                       &rope->partial_rotary_factor, err));
    int32_t rotary_dim = (int32_t)(config->head_dim * rope->partial_rotary_factor);
    if (rotary_dim < 2 || rotary_dim % 2 != 0)
        return error_set_field(err, STATUS_INVALID, "head_dim",
                               "%s: %d of %d head dimensions would be rotated, expected an even "
                               "number of at least 2",
                               json->name, rotary_dim, config->head_dim);
    if (!from)
        return STATUS_OK;

    TRY(parse_type(rope, &own, !is_parameters, err));
    if (rope->type == ROPE_DEFAULT)
        return STATUS_OK;
    bool needs_factor = rope->type != ROPE_LONGROPE;
    TRY(hf_json_double(&own, "factor", 1e-3, max_factor,
                       needs_factor ? HF_JSON_REQUIRED : HF_JSON_OPTIONAL, &rope->factor, err));
    TRY(hf_json_int(&merged, "original_max_position_embeddings", 1, INT32_MAX, HF_JSON_OPTIONAL,
                    &rope->original_max_position_embeddings, err));
    if (rope->original_max_position_embeddings == 0)
        rope->original_max_position_embeddings = config->max_position_embeddings;
    bool needs_original = rope->type != ROPE_LINEAR;
    if (needs_original && rope->original_max_position_embeddings == 0)
        return error_set_field(err, STATUS_INVALID, "original_max_position_embeddings",
                               "%s: this rope type needs \"original_max_position_embeddings\" or "
                               "\"max_position_embeddings\", neither is there",
                               json->name);
    switch (rope->type) {
    case ROPE_LLAMA3:
        return parse_llama3(rope, &own, err);
    case ROPE_YARN:
        return parse_yarn(rope, &own, err);
    case ROPE_LONGROPE:
        return parse_longrope(config, rope, &own, err);
    default:
        return STATUS_OK;
    }
}

enum status hf_rope_parse(struct model_config *config, const struct hf_json *json,
                          struct error *err)
{
    const json_t *full = NULL, *sliding = NULL, *scaling = NULL;
    TRY(pick_parameters(&full, &sliding, json, err));
    TRY(hf_json_object(json, "rope_scaling", &scaling, err));
    TRY(parse_record(config, &config->rope, json, full ? full : scaling, full != NULL, err));
    config->has_sliding_rope = full != sliding;
    if (full != sliding)
        return parse_record(config, &config->sliding_rope, json, sliding, true, err);
    bool is_gemma3 = strncmp(config->model_type, "gemma3", 6) == 0;
    if (full || !(is_gemma3 || hf_json_find(json, "rope_local_base_freq")))
        return STATUS_OK;
    // The old spelling: layers that slide have a base of their own and are never stretched.
    config->has_sliding_rope = true;
    const struct hf_json nothing = {json->name, NULL, NULL};
    TRY(parse_record(config, &config->sliding_rope, &nothing, NULL, false, err));
    config->sliding_rope.partial_rotary_factor = config->rope.partial_rotary_factor;
    config->sliding_rope.theta = 1e4;
    return hf_json_double(json, "rope_local_base_freq", 1, max_theta, HF_JSON_OPTIONAL,
                          &config->sliding_rope.theta, err);
}
