// Tokens stand as a string or as {"content": "..."}, templates as a string or as a list of named
// ones, of which "default" is the one for chats.
#include "api_server/tokenizer_files.h"

#include <string.h>

#include "base/mapped_file.h"
#include "base/memory.h"

static struct str text_of(const json_t *value)
{
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return (struct str){json_string_value(value), json_string_length(value)};
}

static struct str template_of(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *row = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        if (name && strcmp(name, "default") == 0)
            return text_of(json_object_get(row, "template"));
    }
    return json_is_string(value) ? text_of(value) : (struct str){0};
}

static void take(struct tokenizer_files *files, const json_t *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct str text = text_of(json_object_get(config, names[i]));
        if (text.ptr)
            json_object_set_new(files->special_tokens, names[i], json_stringn(text.ptr, text.len));
    }
    files->eos_token = arena_str(&files->arena, text_of(json_object_get(config, "eos_token")));
    files->chat_template =
        arena_str(&files->arena, template_of(json_object_get(config, "chat_template")));
}

static enum status read_config(struct tokenizer_files *files, const char *path, struct error *err)
{
    struct mapped_file file;
    enum status status = mapped_file_open(&file, path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    json_error_t failure;
    json_t *config = json_loadb(file.data ? file.data : "", file.size, 0, &failure);
    if (json_is_object(config))
        take(files, config);
    else
        status = error_set(err, STATUS_INVALID, "%s: line %d: %s", path, failure.line,
                           config ? "expected an object" : failure.text);
    json_decref(config);
    mapped_file_close(&file);
    return status;
}

static enum status read_template(struct tokenizer_files *files, const char *path, struct error *err)
{
    struct mapped_file file;
    enum status status = mapped_file_open(&file, path, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    files->chat_template = arena_str(&files->arena, mapped_file_str(&file));
    mapped_file_close(&file);
    return STATUS_OK;
}

enum status tokenizer_files_load(struct tokenizer_files *files, const char *dir, struct error *err)
{
    *files = (struct tokenizer_files){.special_tokens = json_object()};
    TRY(read_config(files, arena_printf(&files->arena, "%s/tokenizer_config.json", dir), err));
    return read_template(files, arena_printf(&files->arena, "%s/chat_template.jinja", dir), err);
}

void tokenizer_files_deinit(struct tokenizer_files *files)
{
    json_decref(files->special_tokens);
    arena_deinit(&files->arena);
    *files = (struct tokenizer_files){0};
}
