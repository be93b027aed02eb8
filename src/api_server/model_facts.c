// Everything here is read once, before the server listens, and never changes.
#include "api_server/model_facts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "tokenizer/tokenizer_config.h"

static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static enum status compile_file(struct model_facts *facts, const char *path, struct error *err)
{
    struct mapped_file file;
    TRY(mapped_file_open(&file, path, err));
    enum status status = chat_template_compile(&facts->chat_template, mapped_file_str(&file), err);
    mapped_file_close(&file);
    if (status != STATUS_OK)
        error_prefix(err, "%s", path);
    return status;
}

/** A model whose own template is beyond us still completes prompts. */
static enum status compile_own(struct chat_template **out, struct str source, const char *name,
                               struct error *err)
{
    if (source.len == 0)
        return STATUS_OK;
    enum status status = chat_template_compile(out, source, err);
    if (status == STATUS_OK)
        return STATUS_OK;
    error_prefix(err, "%s", name);
    if (status != STATUS_UNSUPPORTED)
        return status;
    log_warning("%s: chat requests will be refused; see --chat-template", err->message);
    return STATUS_OK;
}

static enum status compile_named(struct model_facts *facts, const struct tokenizer_config *config,
                                 struct error *err)
{
    facts->named_templates =
        xcalloc(config->num_named_chat_templates + 1, sizeof(*facts->named_templates));
    for (size_t i = 0; i < config->num_named_chat_templates; i++) {
        const struct named_chat_template *named = &config->named_chat_templates[i];
        struct named_template *own = &facts->named_templates[facts->num_named_templates++];
        own->name = arena_str(&facts->config.arena, named->name);
        char what[128];
        snprintf(what, sizeof(what), "the model's chat template named \"%.60s\"", own->name.ptr);
        TRY(compile_own(&own->template, named->source, what, err));
    }
    return STATUS_OK;
}

/** --chat-template (a path, or the text itself) wins over the model's own. */
static enum status load_template(struct model_facts *facts, const struct serve_options *o,
                                 const struct tokenizer_config *config, struct error *err)
{
    const char *given = o->chat_template;
    if (given && is_file(given))
        return compile_file(facts, given, err);
    if (given && !strpbrk(given, "{}\n"))
        return error_set_field(err, STATUS_NOT_FOUND, "--chat-template",
                               "--chat-template %s: no such file, and it does not look like a "
                               "template",
                               given);
    if (given) {
        enum status status = chat_template_compile(&facts->chat_template, str_from(given), err);
        if (status != STATUS_OK)
            error_prefix(err, "--chat-template");
        return status;
    }
    TRY(compile_named(facts, config, err));
    TRY(compile_own(&facts->chat_template, config->chat_template, "the model's chat template",
                    err));
    struct str with_tools = tokenizer_config_template(config, STR("tool_use"));
    if (with_tools.ptr == config->chat_template.ptr) // there is none of that name
        return STATUS_OK;
    return compile_own(&facts->tool_template, with_tools, "the model's chat template for tools",
                       err);
}

/** The tokenizer's end-of-sequence token is the main one; what else the model's files name stops as
 *  well, and is told apart by its id. */
static void set_eos_ids(struct model_facts *facts, int32_t tokenizer_eos)
{
    struct protocol_config *p = &facts->protocol;
    const struct model_config *c = &facts->config;
    p->eos_token_id = tokenizer_eos;
    if (p->eos_token_id < 0 && c->num_eos_token_ids > 0)
        p->eos_token_id = c->eos_token_ids[0];
    int32_t *extra = arena_array(&facts->config.arena, int32_t, c->num_eos_token_ids + 1);
    for (int32_t i = 0; i < c->num_eos_token_ids; i++) {
        if (c->eos_token_ids[i] != p->eos_token_id && p->num_extra_eos_ids < MAX_STOP_TOKEN_IDS / 2)
            extra[p->num_extra_eos_ids++] = c->eos_token_ids[i];
    }
    p->extra_eos_ids = extra;
}

static enum status parse_default_kwargs(struct model_facts *facts, const struct serve_options *o,
                                        struct error *err)
{
    if (!o->default_chat_template_kwargs)
        return STATUS_OK;
    json_error_t failure;
    facts->default_template_kwargs = json_loads(o->default_chat_template_kwargs, 0, &failure);
    if (json_is_object(facts->default_template_kwargs))
        return STATUS_OK;
    return error_set_field(err, STATUS_INVALID, "--default-chat-template-kwargs",
                           "--default-chat-template-kwargs: expected a JSON object, got %.200s",
                           o->default_chat_template_kwargs);
}

static enum status load(struct model_facts *facts, const struct serve_options *o, struct error *err)
{
    if (o->skip_tokenizer_init)
        return error_set_field(err, STATUS_UNSUPPORTED, "--skip-tokenizer-init",
                               "--skip-tokenizer-init: the API server cannot do without a "
                               "tokenizer yet");
    TRY(model_config_load(&facts->config, o->model, o->generation_config,
                          o->override_generation_config, err));
    const char *dir = o->tokenizer ? o->tokenizer : o->model;
    char path[4096];
    snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
    TRY(tokenizer_load(&facts->tokenizer, is_file(dir) ? dir : path, err));
    struct tokenizer_config config;
    enum status status = tokenizer_config_load(&config, dir, err);
    if (status == STATUS_OK)
        status = load_template(facts, o, &config, err);
    if (status == STATUS_OK) {
        facts->special_tokens = json_incref(config.special_tokens);
        int32_t eos = config.eos_token.len > 0
                          ? tokenizer_token_to_id(facts->tokenizer, config.eos_token)
                          : -1;
        set_eos_ids(facts, eos);
    }
    tokenizer_config_deinit(&config);
    TRY(status);
    TRY(pooling_config_load(&facts->protocol.pooling, o, &facts->config, err));
    return parse_default_kwargs(facts, o, err);
}

enum status model_facts_load(struct model_facts *facts, const struct serve_options *o,
                             struct error *err)
{
    *facts = (struct model_facts){0};
    json_object_seed(0); // before there are threads
    enum status status = load(facts, o, err);
    if (status != STATUS_OK) {
        model_facts_deinit(facts);
        return status;
    }
    facts->wants_content_parts =
        facts->chat_template && chat_template_wants_content_parts(facts->chat_template);
    facts->protocol.vocab_size = facts->config.vocab_size;
    facts->protocol.max_logprobs = o->max_logprobs;
    facts->protocol.defaults = facts->config.generation;
    facts->protocol.trust_request_chat_template = o->trust_request_chat_template;
    facts->protocol.return_tokens_as_token_ids = o->return_tokens_as_token_ids;
    facts->protocol.force_include_usage = o->enable_force_include_usage;
    uint64_t hash = str_hash(str_from(o->model)) ^ str_hash(str_from(o->dtype));
    snprintf(facts->system_fingerprint, sizeof(facts->system_fingerprint), "vllm-%s-%08x",
             VLLM_VERSION, (unsigned)(hash ^ hash >> 32));
    return STATUS_OK;
}

void model_facts_deinit(struct model_facts *facts)
{
    tokenizer_destroy(facts->tokenizer);
    chat_template_destroy(facts->chat_template);
    chat_template_destroy(facts->tool_template);
    for (int32_t i = 0; i < facts->num_named_templates; i++)
        chat_template_destroy(facts->named_templates[i].template);
    free(facts->named_templates);
    json_decref(facts->special_tokens);
    json_decref(facts->default_template_kwargs);
    model_config_deinit(&facts->config);
    *facts = (struct model_facts){0};
}

void model_facts_log(const struct model_facts *facts, const struct serve_options *o)
{
    const struct generation_config *g = &facts->protocol.defaults;
    struct buf text = {0};
    const struct {
        const char *name;
        bool has;
        double value;
    } rows[] = {
        {"temperature", g->has_temperature, g->temperature},
        {"top_p", g->has_top_p, g->top_p},
        {"top_k", g->has_top_k, g->top_k},
        {"min_p", g->has_min_p, g->min_p},
        {"repetition_penalty", g->has_repetition_penalty, g->repetition_penalty},
        {"max_tokens", g->has_max_new_tokens, g->max_new_tokens},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].has)
            buf_printf(&text, "%s'%s': %g", text.len > 0 ? ", " : "", rows[i].name, rows[i].value);
    }
    if (text.len > 0)
        log_info("Default sampling parameters (--generation-config %s): {" STR_FORMAT
                 "}. A request's own values win%s.",
                 o->generation_config ? o->generation_config : "auto", STR_ARG(buf_str(&text)),
                 g->has_max_new_tokens && g->max_new_tokens_is_cap ? "; max_tokens is a cap" : "");
    else
        log_info("Default sampling parameters: none from the model, so temperature 1, top_p 1, "
                 "top_k off");
    buf_deinit(&text);
}
