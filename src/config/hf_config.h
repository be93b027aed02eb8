// The model's own files: config.json and generation_config.json, old and new spellings alike.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/str.h"
#include "config/quantization.h"

enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
};

/** Rotary embedding of one kind of layer, normalised from rope_theta + rope_scaling or
 *  rope_parameters. */
struct rope_config {
    enum rope_type type;
    double theta;
    double partial_rotary_factor; // share of head_dim that is rotated; 1 unless said
    double factor;                // 1 unless scaled
    int32_t original_max_position_embeddings;
    double low_freq_factor, high_freq_factor; // llama3
    double beta_fast, beta_slow;              // yarn
    bool truncate;                            // yarn: round the ramp's ends; true unless said
    double attention_factor;                  // yarn, longrope; negative: derived
    double mscale, mscale_all_dim;            // yarn; 0: not given
    const double *short_factor, *long_factor; // longrope: num_factors each
    int32_t num_factors;
};

/** Sampling defaults of generation_config.json; `has_...` tells what the file says. */
struct generation_config {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    bool has_max_new_tokens;
    double temperature, top_p, min_p, repetition_penalty;
    int32_t top_k, max_new_tokens;
    bool max_new_tokens_is_cap; // from a named folder or --override-generation-config
};

/** The parsed config.json, for keys that only one architecture knows. Opaque. */
struct hf_config;

/** What every decoder needs to know. Text lives in `arena`. */
struct model_config {
    struct arena arena;
    const struct hf_config *raw;
    const char *path;         // the model's directory
    const char *architecture; // "Qwen3ForCausalLM"
    const char *model_type;   // "qwen3"
    enum dtype dtype;         // torch_dtype / dtype; float32 when the file does not say
    int32_t vocab_size, hidden_size, intermediate_size;
    int32_t num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    double rms_norm_eps;
    const char *hidden_act;
    bool attention_bias, mlp_bias, tie_word_embeddings;
    int32_t max_position_embeddings; // 0: not said
    const int32_t *layer_windows;    // [num_hidden_layers] sliding window in tokens, 0: full
    struct rope_config rope;         // of layers that see everything
    struct rope_config sliding_rope; // of layers that see a window, where it is another
    bool has_sliding_rope;
    const struct quantization *quantization; // of the checkpoint; NULL: none
    int32_t bos_token_id;                    // -1: none
    const int32_t *eos_token_ids; // config.json's and generation_config.json's, the main one first
    int32_t num_eos_token_ids;
    struct generation_config generation;
};

/**
 * Reads DIR/config.json and generation_config.json (`generation` "auto", "vllm" or NULL: the
 * model's, which may be absent; else a folder's). "vllm" takes only the end-of-sequence ids from it
 * and no sampling defaults. `override_json` (may be NULL) is merged over the defaults.
 * Errors: NOT_FOUND, INVALID, UNSUPPORTED; the message names file, key, what was found and what was
 * expected.
 */
NODISCARD enum status model_config_load(struct model_config *config, const char *dir,
                                        const char *generation, const char *override_json,
                                        struct error *err);

/** As model_config_load() for config.json's bytes alone; `name` stands in messages. */
NODISCARD enum status model_config_parse(struct model_config *config, struct str json,
                                         const char *name, struct error *err);
void model_config_deinit(struct model_config *config);

/** Keys of the raw file, "a.b" for nested ones. Absent or null: `*out` stays. Errors: INVALID
 * (another type or out of range). */
NODISCARD enum status hf_config_get_int(const struct model_config *config, const char *key,
                                        int32_t *out, struct error *err);
NODISCARD enum status hf_config_get_double(const struct model_config *config, const char *key,
                                           double *out, struct error *err);
NODISCARD enum status hf_config_get_bool(const struct model_config *config, const char *key,
                                         bool *out, struct error *err);
/** A list of integers within [min, max], which the caller frees. */
NODISCARD enum status hf_config_get_ints(const struct model_config *config, const char *key,
                                         int32_t min, int32_t max, int32_t **out, int32_t *count,
                                         struct error *err);

/** Whether the file has the key and says null. */
bool hf_config_is_null(const struct model_config *config, const char *key);

/**
 * The longest context the model is made for (max_position_embeddings times the rope factor where
 * that applies), the tokenizer's model_max_length (0: none) taken into account. 2048 when nothing
 * says.
 */
int32_t model_config_derived_max_len(const struct model_config *config, int64_t tokenizer_max_len);

/** What --max-model-len is when nobody says: the derived length, but for longrope the original one,
 *  because its long factors cost quality on short inputs. */
int32_t model_config_default_max_len(const struct model_config *config, int64_t tokenizer_max_len);
