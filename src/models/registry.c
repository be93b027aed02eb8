// "Qwen3ForCausalLM" -> &qwen3_model, and what all models have in common when they load.
#include "base/buf.h"
#include "base/memory.h"
#include "models/decoder.h"
#include "models/model.h"

static const struct model_class *const CLASSES[] = {
    &llama_model,  &mistral_model, &qwen2_model, &qwen3_model,     &gemma2_model,
    &gemma3_model, &phi3_model,    &olmo2_model, &qwen3_moe_model, &mixtral_model,
};

enum status model_class_find(const struct model_class **out, const char *architecture,
                             struct error *err)
{
    struct str wanted = str_from(architecture);
    for (size_t i = 0; i < ARRAY_LEN(CLASSES); i++) {
        if (str_eq_c(wanted, CLASSES[i]->architecture)) {
            *out = CLASSES[i];
            return STATUS_OK;
        }
    }
    struct buf list = {0};
    for (size_t i = 0; i < ARRAY_LEN(CLASSES); i++)
        buf_printf(&list, "%s%s", i ? ", " : "", CLASSES[i]->architecture);
    enum status status = error_set(err, STATUS_UNSUPPORTED,
                                   "the model's architecture \"" STR_FORMAT
                                   "\" is not supported; supported are " STR_FORMAT,
                                   STR_ARG(str_slice(wanted, 0, 100)), STR_ARG(buf_str(&list)));
    buf_deinit(&list);
    return status;
}

enum status model_load(struct model *model, const struct model_config *config, enum model_use use,
                       int32_t max_model_len, struct weight_store *store, struct error *err)
{
    *model = (struct model){.config = config, .use = use, .max_model_len = max_model_len};
    TRY(model_class_find(&model->class, config->architecture, err));
    const struct weights w = {.store = store};
    TRY(model->class->load(model, &w, err));
    static const char *const LM_HEAD[] = {"lm_head."}; // some exporters write it although tied
    bool ignores_head = config->tie_word_embeddings || use == MODEL_POOLS;
    return weight_store_check_unused(store, LM_HEAD, ignores_head ? 1 : 0, err);
}
