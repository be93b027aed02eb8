// The forms of --help: the groups, everything, one group, or what matches a text.
#include "config/option_table.h"

#include <ctype.h>
#include <string.h>

#include "base/memory.h"

enum { HELP_COLUMN = 24, LINE_WIDTH = 100 };

const char options_usage[] = "usage: vllm serve [model_tag] [options]\n";

static const char description[] =
    "Start an OpenAI-compatible server for a model in a local directory.";

void option_print_wrapped(FILE *out, const char *text, int indent)
{
    int column = indent;
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, " ");
        if (column > indent && column + 1 + (int)len > LINE_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(out, "%s%.*s", column > indent ? " " : "", (int)len, p);
        p += len;
        p += strspn(p, " ");
    }
    fputc('\n', out);
}

static void print_overview(FILE *out)
{
    fprintf(out, "%s\n%s\n\nConfig Groups:\n", options_usage, description);
    fprintf(out, "  %-*s%s\n", HELP_COLUMN, "positional arguments", "The model's directory.");
    for (int g = 0; g < NUM_GROUPS; g++)
        fprintf(out, "  %-*s%s\n", HELP_COLUMN, option_group_title(g), option_group_description(g));
    fputs("\nFor the options themselves:\n"
          "  --help=all            every option\n"
          "  --help=<Group>        the options of a group, e.g. --help=ModelConfig\n"
          "  --help=<text>         the options whose name contains a text, e.g. --help=max\n",
          out);
}

/** "--max-model-len MAX_MODEL_LEN". */
static void print_names(FILE *out, const struct option *option)
{
    struct arena arena = {0};
    struct str rest = str_from(option_display_name(option, &arena));
    fputs("  ", out);
    for (bool is_first = true; rest.len > 0; is_first = false) {
        struct str name = str_split(&rest, '/');
        fprintf(out, "%s" STR_FORMAT, is_first ? "" : ", ", STR_ARG(name));
    }
    arena_deinit(&arena);
    if (option_takes_value(option) && option->choices) {
        fprintf(out, " {%s}", option->choices);
    } else if (option_takes_value(option)) {
        fputc(' ', out);
        for (const char *p = option->name; *p; p++)
            fputc(*p == '-' ? '_' : toupper((unsigned char)*p), out);
        if (option->kind == OPTION_LIST)
            fputs(" ...", out);
    }
    fputc('\n', out);
}

void option_print_help(FILE *out, const struct option *option)
{
    print_names(out, option);
    struct buf text = {0};
    buf_append_c(&text, option->help);
    bool acts = option->kind == OPTION_HELP || option->kind == OPTION_CONFIG;
    if (option->accepts && strcmp(option->accepts, "*") != 0)
        buf_printf(&text, " Supported so far: %s.", option->accepts);
    else if (option->offset == NO_FIELD && !option->accepts && !acts)
        buf_append_c(&text, " Not supported yet.");
    buf_printf(&text, " (default: %s)%c", option->default_text[0] ? option->default_text : "''",
               '\0');
    fprintf(out, "%*s", HELP_COLUMN, "");
    option_print_wrapped(out, text.ptr, HELP_COLUMN);
    buf_deinit(&text);
}

static int by_name(const void *a, const void *b)
{
    const struct option *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static bool has_text(const struct option *option, struct str text)
{
    struct arena arena = {0};
    struct str name = str_from(option_display_name(option, &arena));
    bool found = str_find(name, text, 0) != STR_NOT_FOUND;
    arena_deinit(&arena);
    return found;
}

/** Prints the options of one group (or, with `text`, of any group) under a title; their number. */
static int print_section(FILE *out, const char *title, int group, struct str text)
{
    size_t count = 0, num_found = 0;
    const struct option *table = option_table(&count);
    const struct option **found = xcalloc(count, sizeof(*found));
    for (size_t i = 0; i < count; i++) {
        if (text.len > 0 ? has_text(&table[i], text) : table[i].group == group)
            found[num_found++] = &table[i];
    }
    qsort(found, num_found, sizeof(*found), by_name);
    if (num_found > 0)
        fprintf(out, "\n%s:\n", title);
    for (size_t i = 0; i < num_found; i++)
        option_print_help(out, found[i]);
    free(found);
    return (int)num_found;
}

static void print_positional(FILE *out)
{
    fputs("\npositional arguments:\n  model_tag\n", out);
    fprintf(out, "%*sThe model's directory. (default: Qwen/Qwen3-0.6B)\n", HELP_COLUMN, "");
}

static void print_all(FILE *out)
{
    fprintf(out, "%s\n%s\n", options_usage, description);
    print_positional(out);
    for (int g = 0; g < NUM_GROUPS; g++)
        print_section(out, option_group_title(g), g, (struct str){0});
    fputs("\nOptions that take JSON also take its keys one by one:\n"
          "  --json-arg.key1 value1 --json-arg.key2.key3=value2\n"
          "  --json-arg.key4+ a --json-arg.key4+=b,c     (a list)\n"
          "are the same as\n"
          "  --json-arg '{\"key1\": \"value1\", \"key2\": {\"key3\": \"value2\"}, "
          "\"key4\": [\"a\", \"b\", \"c\"]}'\n",
          out);
}

/** Lower case, '_' as '-': how group titles and texts are compared. */
static struct str normalise(const char *text, char *copy, size_t size)
{
    size_t len = 0;
    for (; text[len] && len + 1 < size; len++)
        copy[len] = text[len] == '_' ? '-' : (char)tolower((unsigned char)text[len]);
    copy[len] = '\0';
    return (struct str){copy, len};
}

void options_help(FILE *out, const char *topic)
{
    if (!topic) {
        print_overview(out);
        return;
    }
    char wanted_copy[128], title_copy[128];
    struct str wanted = normalise(topic, wanted_copy, sizeof(wanted_copy));
    if (str_eq(wanted, STR("all"))) {
        print_all(out);
        return;
    }
    fputs(options_usage, out);
    if (str_eq(wanted, STR("positional arguments"))) {
        print_positional(out);
        return;
    }
    for (int g = 0; g < NUM_GROUPS; g++) {
        const char *title = option_group_title(g);
        if (str_eq(wanted, normalise(title, title_copy, sizeof(title_copy)))) {
            print_section(out, title, g, (struct str){0});
            return;
        }
    }
    while (wanted.len > 0 && wanted.ptr[0] == '-') // --help=--max is --help=max
        wanted = str_slice(wanted, 1, wanted.len);
    char title[192];
    snprintf(title, sizeof(title), "Arguments matching '%s'", wanted_copy);
    if (wanted.len == 0 || print_section(out, title, -1, wanted) == 0)
        fprintf(out,
                "\nNo group or option matches '%s'. Use --help for the groups or --help=all for "
                "every option.\n",
                topic);
}
