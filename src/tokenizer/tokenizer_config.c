// Read with the streaming reader: some of these files hold a megabyte of added tokens, which
// tokenizer.json has as well, and lengths that no integer type holds.
#include "tokenizer/tokenizer_config.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json_reader.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "base/utf8.h"

enum { MAX_NAMED_TEMPLATES = 64 };

/** Reads a token: a string, an object with "content", or null (`*out` stays). */
static enum status read_token(struct json_reader *reader, struct str *out, struct error *err)
{
    enum json_token kind = json_reader_peek(reader);
    if (kind == JSON_TOKEN_NULL) {
        json_reader_next(reader);
        return STATUS_OK;
    }
    if (kind != JSON_TOKEN_OBJECT_BEGIN)
        return json_reader_read_string(reader, out, err);
    json_reader_next(reader);
    bool has_content = false;
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "content")) {
            TRY(json_reader_read_string(reader, out, err));
            has_content = true;
        } else {
            json_reader_skip_value(reader);
        }
    }
    TRY(json_reader_status(reader, err));
    return has_content ? STATUS_OK
                       : error_set(err, STATUS_INVALID,
                                   "at byte %zu: a token that is an object needs \"content\"",
                                   reader->offset);
}

/** Keeps a token under its role, unless a file read before had one. */
static enum status read_role(struct tokenizer_config *config, struct json_reader *reader,
                             struct str role, struct error *err)
{
    struct str token = {0};
    TRY(read_token(reader, &token, err));
    if (!token.ptr || json_object_getn(config->special_tokens, role.ptr, role.len))
        return STATUS_OK;
    const struct {
        const char *role;
        struct str *out;
    } fields[] = {{"bos_token", &config->bos_token},
                  {"eos_token", &config->eos_token},
                  {"pad_token", &config->pad_token},
                  {"unk_token", &config->unk_token}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (str_eq_c(role, fields[i].role))
            *fields[i].out = arena_str(&config->arena, token);
    json_object_setn_new(config->special_tokens, role.ptr, role.len,
                         json_stringn(token.ptr, token.len));
    return STATUS_OK;
}

/** Further roles, such as image_token: {"image_token": "<image>"}; older files have a list. */
static enum status read_extra_roles(struct tokenizer_config *config, struct json_reader *reader,
                                    struct error *err)
{
    if (json_reader_peek(reader) != JSON_TOKEN_OBJECT_BEGIN) {
        json_reader_skip_value(reader);
        return json_reader_status(reader, err);
    }
    json_reader_next(reader);
    for (struct str role; json_reader_next_key(reader, &role);)
        TRY(read_role(config, reader, role, err));
    return json_reader_status(reader, err);
}

static enum status read_named_template(struct tokenizer_config *config, struct json_reader *reader,
                                       struct error *err)
{
    struct named_chat_template named = {0};
    TRY(json_reader_expect(reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "name"))
            TRY(json_reader_read_string(reader, &named.name, err));
        else if (str_eq_c(key, "template"))
            TRY(json_reader_read_string(reader, &named.source, err));
        else
            json_reader_skip_value(reader);
    }
    TRY(json_reader_status(reader, err));
    if (!named.name.ptr || !named.source.ptr)
        return error_set_field(err, STATUS_INVALID, "chat_template",
                               "at byte %zu: a listed chat template needs \"name\" and "
                               "\"template\"",
                               reader->offset);
    if (config->num_named_chat_templates == MAX_NAMED_TEMPLATES)
        return error_set_field(err, STATUS_TOO_LARGE, "chat_template",
                               "more than %d chat templates", MAX_NAMED_TEMPLATES);
    named.name = arena_str(&config->arena, named.name);
    named.source = arena_str(&config->arena, named.source);
    config->named_chat_templates[config->num_named_chat_templates++] = named;
    return STATUS_OK;
}

static enum status read_chat_template(struct tokenizer_config *config, struct json_reader *reader,
                                      struct error *err)
{
    enum json_token kind = json_reader_peek(reader);
    if (kind == JSON_TOKEN_NULL) {
        json_reader_next(reader);
        return STATUS_OK;
    }
    if (kind != JSON_TOKEN_ARRAY_BEGIN) {
        struct str source;
        TRY(json_reader_read_string(reader, &source, err));
        config->chat_template = arena_str(&config->arena, source);
        config->num_named_chat_templates = 0;
        return STATUS_OK;
    }
    json_reader_next(reader);
    config->named_chat_templates =
        arena_array(&config->arena, struct named_chat_template, MAX_NAMED_TEMPLATES);
    config->num_named_chat_templates = 0;
    while (json_reader_next_element(reader))
        TRY(read_named_template(config, reader, err));
    TRY(json_reader_status(reader, err));
    config->chat_template = tokenizer_config_template(config, STR("default"));
    return STATUS_OK;
}

/** A length; the huge number that stands for "none" in many files is 0. */
static enum status read_max_length(struct json_reader *reader, int64_t *out, struct error *err)
{
    enum json_token kind = json_reader_next(reader);
    TRY(json_reader_status(reader, err));
    if (kind == JSON_TOKEN_NULL)
        return STATUS_OK;
    bool is_number = kind == JSON_TOKEN_INTEGER || kind == JSON_TOKEN_DOUBLE;
    if (!is_number || reader->number < 0)
        return error_set_field(err, STATUS_INVALID, "model_max_length",
                               "model_max_length must be a positive number, found %s",
                               json_token_name(kind));
    *out = reader->number > 1e15 ? 0 : (int64_t)reader->number;
    return STATUS_OK;
}

static enum status read_add_bos(struct json_reader *reader, int *out, struct error *err)
{
    if (json_reader_peek(reader) == JSON_TOKEN_NULL) {
        json_reader_next(reader);
        return STATUS_OK;
    }
    bool add = false;
    TRY(json_reader_read_bool(reader, &add, err));
    *out = add;
    return STATUS_OK;
}

static bool is_role(struct str key)
{
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (str_eq_c(key, roles[i]))
            return true;
    return false;
}

/** Both files have the roles; the rest is in tokenizer_config.json only. */
static enum status read_members(struct tokenizer_config *config, struct json_reader *reader,
                                bool roles_only, struct error *err)
{
    TRY(json_reader_expect(reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (is_role(key))
            TRY(read_role(config, reader, key, err));
        else if (!roles_only && str_eq_c(key, "extra_special_tokens"))
            TRY(read_extra_roles(config, reader, err));
        else if (!roles_only && str_eq_c(key, "chat_template"))
            TRY(read_chat_template(config, reader, err));
        else if (!roles_only && str_eq_c(key, "model_max_length"))
            TRY(read_max_length(reader, &config->model_max_length, err));
        else if (!roles_only && str_eq_c(key, "add_bos_token"))
            TRY(read_add_bos(reader, &config->add_bos_token, err));
        else
            json_reader_skip_value(reader);
    }
    return json_reader_expect(reader, JSON_TOKEN_END, err);
}

/** Opens an optional file; `*found` says whether it is there. */
static enum status open_optional(struct mapped_file *file, const char *path, bool *found,
                                 struct error *err)
{
    enum status status = mapped_file_open(file, path, err);
    *found = status == STATUS_OK;
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static enum status read_json_file(struct tokenizer_config *config, const char *path,
                                  bool roles_only, struct error *err)
{
    struct mapped_file file;
    bool found;
    TRY(open_optional(&file, path, &found, err));
    if (!found)
        return STATUS_OK;
    struct arena scratch = {0};
    struct json_reader reader;
    json_reader_init(&reader, mapped_file_str(&file), &scratch);
    enum status status = read_members(config, &reader, roles_only, err);
    if (status != STATUS_OK)
        error_prefix(err, "%s", path);
    arena_deinit(&scratch);
    mapped_file_close(&file);
    return status;
}

/** The text of a template, where there is such a file. */
static enum status read_template_file(struct str *source, const char *path, struct arena *arena,
                                      struct error *err)
{
    struct mapped_file file;
    bool found;
    TRY(open_optional(&file, path, &found, err));
    if (!found)
        return STATUS_OK;
    size_t bad_offset;
    enum status status = STATUS_OK;
    if (utf8_is_valid(mapped_file_str(&file), &bad_offset))
        *source = arena_str(arena, mapped_file_str(&file));
    else
        status =
            error_set(err, STATUS_INVALID, "%s: malformed UTF-8 at byte %zu", path, bad_offset);
    mapped_file_close(&file);
    return status;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/** Names of the files NAME.jinja in `dir`, sorted; none where there is no such folder. */
static enum status list_templates(const char *dir, struct arena *arena, const char **names,
                                  int32_t *num_names, struct error *err)
{
    DIR *folder = opendir(dir);
    *num_names = 0;
    if (!folder)
        return STATUS_OK;
    enum status status = STATUS_OK;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(folder));) {
        struct str name = str_from(entry->d_name);
        if (!str_ends_with(name, STR(".jinja")))
            continue;
        if (*num_names == MAX_NAMED_TEMPLATES)
            status = error_set(err, STATUS_TOO_LARGE, "%s: more than %d chat templates", dir,
                               MAX_NAMED_TEMPLATES);
        else
            names[(*num_names)++] =
                arena_strdup(arena, str_slice(name, 0, name.len - strlen(".jinja")));
    }
    closedir(folder);
    qsort(names, (size_t)*num_names, sizeof(*names), compare_names);
    return status;
}

/** chat_template.json holds {"chat_template": "..."}, as processors wrote it. */
static enum status read_template_json(struct tokenizer_config *config, const char *path,
                                      struct error *err)
{
    struct mapped_file file;
    bool found;
    TRY(open_optional(&file, path, &found, err));
    if (!found)
        return STATUS_OK;
    struct arena scratch = {0};
    struct json_reader reader;
    json_reader_init(&reader, mapped_file_str(&file), &scratch);
    enum status status = json_reader_expect(&reader, JSON_TOKEN_OBJECT_BEGIN, err);
    for (struct str key; status == STATUS_OK && json_reader_next_key(&reader, &key);) {
        if (str_eq_c(key, "chat_template"))
            status = read_chat_template(config, &reader, err);
        else
            json_reader_skip_value(&reader);
    }
    if (status == STATUS_OK)
        status = json_reader_status(&reader, err);
    if (status != STATUS_OK)
        error_prefix(err, "%s", path);
    arena_deinit(&scratch);
    mapped_file_close(&file);
    return status;
}

/** chat_template.jinja is the default, additional_chat_templates/NAME.jinja have names. Templates
 * in files take the place of all that tokenizer_config.json lists. */
static enum status read_template_files(struct tokenizer_config *config, const char *dir,
                                       struct error *err)
{
    struct arena *arena = &config->arena;
    const char *names[MAX_NAMED_TEMPLATES];
    const char *folder = arena_printf(arena, "%s/additional_chat_templates", dir);
    int32_t num_names;
    struct str source = {0};
    TRY(list_templates(folder, arena, names, &num_names, err));
    TRY(read_template_file(&source, arena_printf(arena, "%s/chat_template.jinja", dir), arena,
                           err));
    if (source.ptr) {
        config->chat_template = source;
        config->num_named_chat_templates = 0;
    }
    if (num_names == 0)
        return STATUS_OK;
    config->named_chat_templates =
        arena_array(arena, struct named_chat_template, MAX_NAMED_TEMPLATES + 1);
    config->num_named_chat_templates = 0;
    if (config->chat_template.ptr)
        config->named_chat_templates[config->num_named_chat_templates++] =
            (struct named_chat_template){STR("default"), config->chat_template};
    for (int32_t i = 0; i < num_names; i++) {
        struct named_chat_template *named =
            &config->named_chat_templates[config->num_named_chat_templates++];
        *named = (struct named_chat_template){.name = str_from(names[i])};
        TRY(read_template_file(&named->source, arena_printf(arena, "%s/%s.jinja", folder, names[i]),
                               arena, err));
    }
    return STATUS_OK;
}

/** The folder of `path` if that is a file, else `path` itself. */
static const char *folder_of(const char *path, struct arena *arena)
{
    struct stat info;
    if (stat(path, &info) != 0 || S_ISDIR(info.st_mode))
        return path;
    const char *slash = strrchr(path, '/');
    if (!slash)
        return ".";
    return arena_strdup(arena, (struct str){path, slash == path ? 1 : (size_t)(slash - path)});
}

static enum status read_folder(struct tokenizer_config *config, const char *dir, struct error *err)
{
    struct arena *arena = &config->arena;
    TRY(read_json_file(config, arena_printf(arena, "%s/tokenizer_config.json", dir), false, err));
    TRY(read_json_file(config, arena_printf(arena, "%s/special_tokens_map.json", dir), true, err));
    TRY(read_template_json(config, arena_printf(arena, "%s/chat_template.json", dir), err));
    return read_template_files(config, dir, err);
}

enum status tokenizer_config_load(struct tokenizer_config *config, const char *dir,
                                  struct error *err)
{
    *config = (struct tokenizer_config){.special_tokens = json_object(), .add_bos_token = -1};
    CHECK(config->special_tokens != NULL);
    enum status status = read_folder(config, folder_of(dir, &config->arena), err);
    if (status != STATUS_OK)
        tokenizer_config_deinit(config);
    return status;
}

void tokenizer_config_deinit(struct tokenizer_config *config)
{
    json_decref(config->special_tokens);
    arena_deinit(&config->arena);
    *config = (struct tokenizer_config){0};
}

struct str tokenizer_config_template(const struct tokenizer_config *config, struct str name)
{
    for (size_t i = 0; i < config->num_named_chat_templates; i++)
        if (str_eq(config->named_chat_templates[i].name, name))
            return config->named_chat_templates[i].source;
    return config->chat_template;
}
