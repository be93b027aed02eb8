// Which template, which variables, and what of the messages it gets to see.
#include "api_server/chat_render.h"

#include <string.h>

#include "api_server/chat_messages.h"
#include "api_server/json_body.h"
#include "base/memory.h"

/** The server's defaults, over them the request's; names that the request's own fields hold, or
 *  that would reach past the template, are left out. */
static json_t *make_kwargs(const struct model_facts *facts, const struct chat_request *r)
{
    json_t *kwargs = json_object();
    if (facts->default_template_kwargs)
        json_object_update(kwargs, facts->default_template_kwargs);
    if (r->reasoning_effort.ptr) {
        json_object_set_new(kwargs, "enable_thinking",
                            json_boolean(!str_eq_c(r->reasoning_effort, "none")));
        json_object_set_new(kwargs, "reasoning_effort",
                            json_stringn(r->reasoning_effort.ptr, r->reasoning_effort.len));
    }
    if (r->chat_template_kwargs)
        json_object_update(kwargs, (json_t *)r->chat_template_kwargs);
    static const char *const reserved[] = {"chat_template",
                                           "tokenize",
                                           "messages",
                                           "tools",
                                           "documents",
                                           "add_generation_prompt",
                                           "continue_final_message"};
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++)
        json_object_del(kwargs, reserved[i]);
    return kwargs;
}

static bool wants_parts(const struct api_server *server, const struct chat_template *chosen)
{
    const char *format = server->options->chat_template_content_format;
    if (format && strcmp(format, "openai") == 0)
        return true;
    if (format && strcmp(format, "string") == 0)
        return false;
    return chat_template_wants_content_parts(chosen);
}

static enum status render(const struct api_server *server, const struct chat_request *r,
                          const struct chat_template *chosen, struct arena *arena,
                          struct str *prompt, struct str *last_text, struct str *last_role,
                          struct api_error *err)
{
    json_t *messages;
    TRY(chat_messages_normalize(&messages, r->messages, wants_parts(server, chosen), err));
    size_t count = json_array_size(messages);
    const json_t *last = count > 0 ? json_array_get(messages, count - 1) : NULL;
    if (last_text)
        *last_text = last ? chat_message_text(last, arena) : (struct str){0};
    if (last_role)
        *last_role =
            last ? arena_str(arena, json_str(json_object_get(last, "role"))) : (struct str){0};
    json_t *kwargs = make_kwargs(&server->facts, r);
    struct chat_template_inputs inputs = {
        .messages = messages,
        .tools = r->tools,
        .documents = r->documents,
        .kwargs = kwargs,
        .special_tokens = server->facts.special_tokens,
        .add_generation_prompt = r->add_generation_prompt,
        .continue_final_message = r->continue_final_message,
    };
    struct error cause = {0};
    enum status status = chat_template_render(chosen, &inputs, arena, prompt, &cause);
    if (status != STATUS_OK)
        status = api_error_set(err, API_ERROR_VALUE, "%s", cause.message);
    json_decref(kwargs);
    json_decref(messages);
    return status;
}

/** The model's own template of this name; NULL: there is none, the text is a template itself. */
static const struct named_template *find_named(const struct model_facts *facts, struct str name)
{
    for (int32_t i = 0; name.ptr && i < facts->num_named_templates; i++) {
        if (str_eq(facts->named_templates[i].name, name))
            return &facts->named_templates[i];
    }
    return NULL;
}

enum status chat_render(const struct api_server *server, const struct chat_request *r,
                        struct arena *arena, struct str *prompt, struct str *last_text,
                        struct str *last_role, struct api_error *err)
{
    struct chat_template *own = NULL;
    const struct named_template *named = find_named(&server->facts, r->chat_template);
    if (r->chat_template.ptr && !named) {
        struct error cause = {0};
        if (chat_template_compile(&own, r->chat_template, &cause) != STATUS_OK)
            return api_error_set(err, API_ERROR_VALUE, "chat_template: %s", cause.message);
    }
    const struct model_facts *facts = &server->facts;
    const struct chat_template *chosen = own                                ? own
                                         : named                            ? named->template
                                         : r->tools && facts->tool_template ? facts->tool_template
                                                                            : facts->chat_template;
    if (!chosen)
        return api_error_set(err, API_ERROR_VALUE,
                             "The model has no chat template: start the server with "
                             "--chat-template, or use /v1/completions.");
    enum status status = render(server, r, chosen, arena, prompt, last_text, last_role, err);
    chat_template_destroy(own);
    return status;
}
