// Names of modules and expressions over them: see module_pattern.h. The expressions are Python's,
// which PCRE2 reads alike; its steps are limited, as a file can hold any expression.
#include "config/module_pattern.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/log.h"
#include "base/memory.h"

enum {
    MAX_PATTERNS = 65536,
    MAX_REGEX_BYTES = 4096,
    MATCH_LIMIT = 100 * 1000,
    HEAP_LIMIT_KIB = 4096,
};

static const char REGEX_PREFIX[] = "re:";

static enum status compile(struct module_pattern *pattern, const struct hf_json *json,
                           const char *key, struct error *err)
{
    const char *text = pattern->text + strlen(REGEX_PREFIX);
    if (strlen(text) > MAX_REGEX_BYTES)
        return error_set_field(err, STATUS_TOO_LARGE, key,
                               "%s: \"%s\" has a regular expression of %zu bytes, expected at most "
                               "%d",
                               json->name, key, strlen(text), MAX_REGEX_BYTES);
    int code;
    size_t offset;
    pattern->regex =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                      PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    if (pattern->regex)
        return STATUS_OK;
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(code, message, sizeof(message));
    return error_set_field(err, STATUS_INVALID, key,
                           "%s: \"%s\" has the regular expression \"%.80s\": %s at byte %zu",
                           json->name, key, text, (const char *)message, offset);
}

enum status module_patterns_parse(struct module_patterns *out, const struct hf_json *json,
                                  const char *key, struct arena *arena, struct error *err)
{
    *out = (struct module_patterns){0};
    const json_t *list = hf_json_find(json, key);
    if (!list)
        return STATUS_OK;
    if (!json_is_array(list) || json_array_size(list) > MAX_PATTERNS)
        return hf_json_wrong(json, key, list, "a list of module names", err);
    out->items = arena_calloc(arena, json_array_size(list) + 1, sizeof(*out->items));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item))
            return hf_json_wrong(json, key, item, "a list of module names", err);
        struct module_pattern *pattern = &out->items[out->count++];
        pattern->text = json_string_value(item);
        if (strncmp(pattern->text, REGEX_PREFIX, strlen(REGEX_PREFIX)) == 0)
            TRY(compile(pattern, json, key, err));
    }
    return STATUS_OK;
}

void module_patterns_deinit(struct module_patterns *patterns)
{
    for (size_t i = 0; i < patterns->count; i++)
        pcre2_code_free(patterns->items[i].regex);
    *patterns = (struct module_patterns){0};
}

static bool regex_matches(const struct module_pattern *pattern, const char *path)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    CHECK(data != NULL && context != NULL);
    pcre2_set_match_limit(context, MATCH_LIMIT);
    pcre2_set_heap_limit(context, HEAP_LIMIT_KIB);
    int found =
        pcre2_match(pattern->regex, (PCRE2_SPTR)path, PCRE2_ZERO_TERMINATED, 0, 0, data, context);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        log_warning("\"%.80s\" takes too many steps to match %s and is taken not to", pattern->text,
                    path);
    return found >= 0;
}

bool module_patterns_match(const struct module_patterns *patterns, const char *path)
{
    for (size_t i = 0; i < patterns->count; i++) {
        const struct module_pattern *pattern = &patterns->items[i];
        if (pattern->regex ? regex_matches(pattern, path) : strcmp(pattern->text, path) == 0)
            return true;
    }
    return false;
}

bool module_patterns_have(const struct module_patterns *patterns, const char *text)
{
    for (size_t i = 0; i < patterns->count; i++) {
        if (strcmp(patterns->items[i].text, text) == 0)
            return true;
    }
    return false;
}
