// Messages → prompt, by the model's own Jinja template, as transformers renders it.
#include "tokenizer/chat_template.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/chat_template_internal.h"
#include "tokenizer/jinja.h"

// Where the last message shall be continued, this is appended to its text before rendering and
// found in the prompt afterwards. The blank at its end tells whether the template trims the text.
static const char continue_tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

struct chat_template {
    struct jinja_template *compiled;
    bool wants_content_parts;
};

enum status chat_template_compile(struct chat_template **out, struct str source, struct error *err)
{
    struct jinja_template *compiled;
    *out = NULL;
    enum status status = jinja_template_compile(&compiled, source, err);
    if (status != STATUS_OK) {
        error_prefix(err, "chat template");
        return status;
    }
    *out = xcalloc(1, sizeof(**out));
    (*out)->compiled = compiled;
    (*out)->wants_content_parts = jinja_template_loops_over_content(compiled);
    return STATUS_OK;
}

void chat_template_destroy(struct chat_template *chat_template)
{
    if (!chat_template)
        return;
    jinja_template_destroy(chat_template->compiled);
    free(chat_template);
}

bool chat_template_wants_content_parts(const struct chat_template *chat_template)
{
    return chat_template->wants_content_parts;
}

static enum status set_all(struct jinja_runtime *rt, const json_t *object)
{
    json_t *mutable_object = (json_t *)(uintptr_t)object; // jansson iterates only what is not const
    for (void *it = json_object_iter(mutable_object); it;
         it = json_object_iter_next(mutable_object, it)) {
        struct str name = {json_object_iter_key(it), json_object_iter_key_len(it)};
        TRY(jinja_runtime_set_json(rt, name, json_object_iter_value(it)));
    }
    return STATUS_OK;
}

static enum status set_inputs(struct jinja_runtime *rt, const struct chat_template_inputs *inputs)
{
    TRY(set_all(rt, inputs->special_tokens));
    TRY(jinja_runtime_set_json(rt, STR("messages"), inputs->messages));
    TRY(jinja_runtime_set_json(rt, STR("tools"), inputs->tools));
    TRY(jinja_runtime_set_json(rt, STR("documents"), inputs->documents));
    TRY(jinja_dict_set(rt, rt->globals, jinja_string(STR("add_generation_prompt")),
                       jinja_bool(inputs->add_generation_prompt)));
    return set_all(rt, inputs->kwargs);
}

/** Where the text that shall be continued is: the content of the message, or the text of its last
 *  part that has one. NULL: there is none. */
static const struct jinja_value *find_final_text(struct jinja_value message,
                                                 struct jinja_dict **holder, struct str *key)
{
    const struct jinja_value *content = NULL;
    *holder = message.kind == JINJA_DICT ? message.dict : NULL;
    *key = STR("content");
    if (*holder)
        content = jinja_dict_get(*holder, *key);
    if (!content || content->kind == JINJA_STRING)
        return content;
    *key = STR("text");
    for (size_t i = content->kind == JINJA_LIST ? content->list->len : 0; i-- > 0;) {
        struct jinja_value part = content->list->items[i];
        *holder = part.kind == JINJA_DICT ? part.dict : NULL;
        const struct jinja_value *text = *holder ? jinja_dict_get(*holder, *key) : NULL;
        if (text && text->kind == JINJA_STRING)
            return text;
    }
    return NULL;
}

/** Appends the tag to the text of the last message; `*final_text` is that text without it. */
static enum status tag_final_message(struct jinja_runtime *rt, struct str *final_text)
{
    const struct jinja_value *messages = jinja_dict_get(rt->globals, STR("messages"));
    const struct jinja_value *text = NULL;
    struct jinja_dict *holder;
    struct str key;
    if (messages->kind == JINJA_LIST && messages->list->len > 0)
        text = find_final_text(messages->list->items[messages->list->len - 1], &holder, &key);
    if (!text)
        return error_set(rt->err, STATUS_INVALID,
                         "continue_final_message is set but the final message has no text to "
                         "continue");
    *final_text = text->str;
    size_t mark = jinja_mark(rt);
    TRY(jinja_put(rt, text->str));
    TRY(jinja_put_c(rt, continue_tag));
    return jinja_dict_set(rt, holder, jinja_string(key), jinja_take(rt, mark));
}

static struct str find_last(struct str text, struct str needle)
{
    struct str found = {0};
    for (size_t at = 0; (at = str_find(text, needle, at)) != STR_NOT_FOUND; at++)
        found = str_slice(text, at, text.len);
    return found;
}

/** Cuts the prompt where the final message's text ends. */
static enum status cut_after_final_text(struct str *prompt, struct str final_text,
                                        struct error *err)
{
    struct str tag = str_from(continue_tag);
    struct str at_tag = find_last(*prompt, str_slice(tag, 0, tag.len - 1));
    struct str stripped = jinja_strip(final_text, NULL, true, true);
    struct str before = {prompt->ptr, at_tag.ptr ? (size_t)(at_tag.ptr - prompt->ptr) : 0};
    if (!at_tag.ptr || str_find(before, stripped, 0) == STR_NOT_FOUND)
        return error_set(err, STATUS_INVALID,
                         "continue_final_message is set but the final message does not appear in "
                         "the chat after applying the chat template");
    bool keeps_space = str_starts_with(at_tag, tag);
    *prompt = keeps_space ? before : jinja_strip(before, NULL, false, true);
    return STATUS_OK;
}

static enum status render(const struct chat_template *chat_template,
                          const struct chat_template_inputs *inputs, struct jinja_runtime *rt,
                          struct str *prompt)
{
    struct str final_text = {0};
    TRY(set_inputs(rt, inputs));
    if (inputs->continue_final_message)
        TRY(tag_final_message(rt, &final_text));
    TRY(jinja_template_render(chat_template->compiled, rt, prompt));
    if (inputs->continue_final_message)
        TRY(cut_after_final_text(prompt, final_text, rt->err));
    return STATUS_OK;
}

enum status chat_template_render_at(const struct chat_template *chat_template,
                                    const struct chat_template_inputs *inputs, const struct tm *now,
                                    struct arena *arena, struct str *prompt, struct error *err)
{
    struct error ignored = {0};
    err = err ? err : &ignored;
    if (!json_is_array(inputs->messages) || json_array_size(inputs->messages) == 0)
        return error_set_field(err, STATUS_INVALID, "messages",
                               "Cannot apply chat template to an empty conversation. Provide at "
                               "least one message.");
    if (inputs->continue_final_message && inputs->add_generation_prompt)
        return error_set_field(err, STATUS_INVALID, "continue_final_message",
                               "continue_final_message and add_generation_prompt are not "
                               "compatible. Use continue_final_message when you want the model to "
                               "continue the final message, and add_generation_prompt when you "
                               "want to add a header that will prompt it to start a new assistant "
                               "message instead.");
    struct jinja_runtime rt;
    jinja_runtime_init(&rt, now, err);
    struct str rendered = {0};
    enum status status = render(chat_template, inputs, &rt, &rendered);
    if (status == STATUS_OK)
        *prompt = arena_str(arena, rendered);
    jinja_runtime_deinit(&rt);
    return status;
}

enum status chat_template_render(const struct chat_template *chat_template,
                                 const struct chat_template_inputs *inputs, struct arena *arena,
                                 struct str *prompt, struct error *err)
{
    return chat_template_render_at(chat_template, inputs, NULL, arena, prompt, err);
}
