// Which row of a table a word spells, in the manner of Python's argparse: in full, abbreviated,
// with an equals sign, as --no-x, or as a one-letter option with its value attached.
#include "config/option_table.h"

#include <string.h>

/** "-1", "-0.5": a value, although it begins with a dash. */
static bool is_negative_number(const char *text)
{
    const char *p = text + 1;
    size_t whole = strspn(p, "0123456789");
    p += whole;
    if (*p == '\0')
        return whole > 0;
    if (*p++ != '.')
        return false;
    size_t fraction = strspn(p, "0123456789");
    return fraction > 0 && p[fraction] == '\0';
}

bool option_is_spelled(const char *text)
{
    if (text[0] != '-' || text[1] == '\0' || is_negative_number(text))
        return false;
    // A word with a blank before any '=' is text, such as a chat template.
    return strcspn(text, " \t\n") >= strcspn(text, "=") || strcspn(text, " \t\n") == strlen(text);
}

char *option_match_split(const char *text, struct arena *arena, struct option_match *match)
{
    size_t len = strcspn(text, "=");
    if (text[len] == '=')
        match->value = text + len + 1;
    size_t name_len = 0;
    while (name_len < len && text[name_len] != '.')
        name_len++;
    if (name_len < len)
        match->dotted = arena_strdup(arena, (struct str){text + name_len + 1, len - name_len - 1});
    char *name = arena_strdup(arena, (struct str){text, name_len});
    for (char *p = name; *p && text[0] == '-' && text[1] == '-'; p++) {
        if (*p == '_')
            *p = '-';
    }
    return name;
}

static bool equals_no(const char *name, const char *option_name)
{
    return strncmp(name, "--no-", 5) == 0 && strcmp(name + 5, option_name) == 0;
}

bool option_match_exact(const struct option *table, size_t count, const char *name,
                        struct option_match *match)
{
    for (size_t i = 0; i < count; i++) {
        const struct option *option = &table[i];
        bool is_long = strncmp(name, "--", 2) == 0 && strcmp(name + 2, option->name) == 0;
        bool is_alias = option->alias && strcmp(name, option->alias) == 0;
        bool is_negated = option_is_pair(option) && equals_no(name, option->name);
        if (is_long || is_alias || is_negated) {
            match->option = option;
            match->negated = is_negated;
            return true;
        }
    }
    return false;
}

bool option_match_attached(const struct option *table, size_t count, const char *text,
                           struct option_match *match)
{
    if (text[0] != '-' || text[1] == '-' || text[1] == '\0' || text[2] == '\0')
        return false;
    for (size_t i = 0; i < count; i++) {
        const char *alias = table[i].alias;
        if (alias && alias[2] == '\0' && alias[1] == text[1] && option_takes_value(&table[i])) {
            *match = (struct option_match){.option = &table[i], .value = text + 2};
            return true;
        }
    }
    return false;
}

static void add_candidate(struct buf *list, const char *dashes, const char *name)
{
    buf_printf(list, "%s%s%s", list->len > 0 ? ", " : "", dashes, name);
}

int option_match_prefix(const struct option *table, size_t count, const char *name,
                        struct option_match *match, struct buf *list)
{
    size_t len = strlen(name);
    int num_found = 0;
    for (size_t i = 0; i < count; i++) {
        const struct option *option = &table[i];
        bool is_long = len > 2 && strncmp(name, "--", 2) == 0;
        if (is_long && strncmp(option->name, name + 2, len - 2) == 0) {
            add_candidate(list, "--", option->name);
            *match = (struct option_match){option, false, match->value, match->dotted};
            num_found++;
        }
        bool is_no = len > 5 && strncmp(name, "--no-", 5) == 0 && option_is_pair(option);
        if (is_no && strncmp(option->name, name + 5, len - 5) == 0) {
            add_candidate(list, "--no-", option->name);
            *match = (struct option_match){option, true, match->value, match->dotted};
            num_found++;
        }
        if (!is_long && option->alias && strncmp(option->alias, name, len) == 0) {
            add_candidate(list, "", option->alias);
            *match = (struct option_match){option, false, match->value, match->dotted};
            num_found++;
        }
    }
    return num_found;
}
