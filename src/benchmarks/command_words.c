#include "benchmarks/command_words.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

void command_words_append(struct str_list *words, const char *word, struct arena *arena)
{
    const char **items = arena_array(arena, const char *, words->len + 1);
    if (words->len > 0)
        memcpy(items, words->items, (size_t)words->len * sizeof(*items));
    items[words->len] = word;
    *words = (struct str_list){items, words->len + 1};
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/** Reads one word from `p` into `word`; where it ended, or NULL for a quote that stays open. */
static const char *read_word(const char *p, struct buf *word)
{
    char quote = '\0';
    for (; *p != '\0' && (quote != '\0' || !is_space(*p)); p++) {
        if (quote == '\0' && (*p == '\'' || *p == '"')) {
            quote = *p;
        } else if (*p == quote) {
            quote = '\0';
        } else if (*p == '\\' && quote != '\'' &&
                   (quote == '\0' || p[1] == '"' || p[1] == '\\' || p[1] == '$' || p[1] == '`')) {
            if (*++p == '\0')
                return NULL;
            buf_append_char(word, *p);
        } else {
            buf_append_char(word, *p);
        }
    }
    return quote == '\0' ? p : NULL;
}

enum status command_words_split(struct str_list *words, const char *option, const char *text,
                                struct arena *arena, struct error *err)
{
    struct buf word = {0};
    const char *p = text;
    *words = (struct str_list){0};
    while (p) {
        while (is_space(*p))
            p++;
        if (*p == '\0')
            break;
        buf_clear(&word);
        p = read_word(p, &word);
        command_words_append(words, arena_strdup(arena, buf_str(&word)), arena);
    }
    buf_deinit(&word);
    if (!p)
        return error_set_field(err, STATUS_INVALID, option,
                               "%s is '%.300s': a quote or a backslash at its end is open", option,
                               text);
    if (words->len == 0)
        return error_set_field(err, STATUS_INVALID, option, "%s is empty, expected a command",
                               option);
    return STATUS_OK;
}

/** What follows the flag `--name` in this word: "" or "=VALUE"; NULL: it is another word. */
static const char *after_name(const char *word, const char *prefix, const char *name)
{
    size_t len = strlen(prefix);
    if (strncmp(word, prefix, len) != 0)
        return NULL;
    for (word += len; *name != '\0'; word++, name++) {
        bool both_dashes = (*word == '-' || *word == '_') && (*name == '-' || *name == '_');
        if (*word != *name && !both_dashes)
            return NULL;
    }
    return *word == '\0' || *word == '=' ? word : NULL;
}

const char *command_words_find(const struct str_list *words, const char *name)
{
    const char *value = NULL;
    for (int32_t i = 0; i < words->len; i++) {
        const char *rest = after_name(words->items[i], "--", name);
        if (rest && *rest == '=')
            value = rest + 1;
        else if (rest)
            value = i + 1 < words->len ? words->items[i + 1] : "";
    }
    return value;
}

const char *command_value_text(const json_t *value, struct arena *arena)
{
    if (json_is_string(value))
        return arena_strdup(arena,
                            (struct str){json_string_value(value), json_string_length(value)});
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    const char *copy = arena_strdup(arena, str_from(text));
    free(text);
    return copy;
}

/** "--no-" before the name in the spelling of command lines. */
static char *flag_word(const char *prefix, const char *name, struct arena *arena)
{
    char *word = arena_printf(arena, "%s%s", prefix, name);
    for (char *p = word; *p != '\0'; p++)
        *p = *p == '_' ? '-' : *p;
    return word;
}

static void append_flag(struct str_list *words, const char *name, const json_t *value,
                        struct arena *arena)
{
    if (json_is_boolean(value)) {
        command_words_append(words, flag_word(json_is_true(value) ? "--" : "--no-", name, arena),
                             arena);
        return;
    }
    const char *flag = flag_word("--", name, arena);
    if (json_is_array(value)) {
        command_words_append(words, flag, arena);
        for (size_t i = 0; i < json_array_size(value); i++)
            command_words_append(words, command_value_text(json_array_get(value, i), arena), arena);
        return;
    }
    const char *text = command_value_text(value, arena);
    if (text[0] == '-') { // else it would be taken for a flag
        command_words_append(words, arena_printf(arena, "%s=%s", flag, text), arena);
        return;
    }
    command_words_append(words, flag, arena);
    command_words_append(words, text, arena);
}

/** How many words from `at` on belong to the flag that stands there. */
static int32_t count_flag_words(const struct str_list *words, int32_t at, const char *rest,
                                const json_t *value)
{
    if (*rest == '=' || json_is_boolean(value))
        return 1;
    int32_t num = 1;
    while (at + num < words->len && strncmp(words->items[at + num], "--", 2) != 0 &&
           (num == 1 || json_is_array(value)))
        num++;
    return num;
}

void command_words_set(struct str_list *words, const char *name, const json_t *value,
                       struct arena *arena)
{
    struct str_list changed = {0};
    bool is_set = false;
    for (int32_t i = 0; i < words->len;) {
        const char *rest = after_name(words->items[i], "--", name);
        if (!rest && json_is_boolean(value))
            rest = after_name(words->items[i], "--no-", name);
        if (!rest) {
            command_words_append(&changed, words->items[i++], arena);
            continue;
        }
        if (!is_set)
            append_flag(&changed, name, value, arena);
        is_set = true;
        i += count_flag_words(words, i, rest, value);
    }
    if (!is_set)
        append_flag(&changed, name, value, arena);
    *words = changed;
}

const char *command_words_text(const struct str_list *words, struct arena *arena)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_=./:,@%+";
    struct buf line = {0};
    for (int32_t i = 0; i < words->len; i++) {
        const char *word = words->items[i];
        if (i > 0)
            buf_append_char(&line, ' ');
        if (*word != '\0' && word[strspn(word, plain)] == '\0') {
            buf_append_c(&line, word);
            continue;
        }
        buf_append_char(&line, '\'');
        for (; *word != '\0'; word++)
            buf_append(&line, *word == '\'' ? STR("'\\''") : (struct str){word, 1});
        buf_append_char(&line, '\'');
    }
    const char *text = arena_strdup(arena, buf_str(&line));
    buf_deinit(&line);
    return text;
}
