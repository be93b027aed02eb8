// One pass over the words: each is an option of the table, a value of the option before it, or
// unknown.
#include "config/command_line.h"

#include <string.h>

#include "base/memory.h"

enum { EXIT_USAGE = 2 };

struct parse {
    const struct command_line *line;
    FILE *out, *err_out;
    int argc, next;
    char **argv;
    int exit_status; // -1: goes on
};

static void fail(struct parse *parse, const char *format, ...) PRINTF_FORMAT(2, 3);
static void fail(struct parse *parse, const char *format, ...)
{
    const struct command_line *line = parse->line;
    va_list args;
    va_start(args, format);
    fprintf(parse->err_out, "usage: %s %s\n%s: error: ", line->program, line->usage, line->program);
    vfprintf(parse->err_out, format, args);
    fputc('\n', parse->err_out);
    va_end(args);
    parse->exit_status = EXIT_USAGE;
}

static bool is_taken(const struct command_line *line, const struct option *option)
{
    return (line->groups >> option->group & 1) != 0;
}

static void print_help(struct parse *parse)
{
    const struct command_line *line = parse->line;
    fprintf(parse->out, "usage: %s %s\n%s\n", line->program, line->usage, line->description);
    for (int g = 0; g < line->num_groups; g++) {
        if ((line->groups >> g & 1) == 0)
            continue;
        fprintf(parse->out, "\n%s:\n", line->group_titles[g]);
        for (size_t i = 0; i < line->num_options; i++) {
            if (line->table[i].group == g)
                option_print_help(parse->out, &line->table[i]);
        }
    }
    if (line->rest_help) {
        fputc('\n', parse->out);
        option_print_wrapped(parse->out, line->rest_help, 0);
    }
    parse->exit_status = 0;
}

static void add_rest(struct parse *parse, const char *text)
{
    struct str_list *rest = parse->line->rest;
    if (!rest)
        fail(parse, "unrecognized arguments: %.200s", text);
    else
        rest->items[rest->len++] = text;
}

/** The row that `text` spells, or NULL: unknown, and noted as such or as an error. */
static const struct option *find(struct parse *parse, const char *text, struct option_match *match)
{
    const struct command_line *line = parse->line;
    char *name = option_match_split(text, line->target.arena, match);
    // A name of one group may begin a name of another, which this command does not take.
    bool found = option_match_exact(line->table, line->num_options, name, match);
    if (!found && !line->rest) {
        struct buf list = {0};
        int num = 0;
        for (size_t i = 0; i < line->num_options; i++) {
            if (is_taken(line, &line->table[i]))
                num += option_match_prefix(&line->table[i], 1, name, match, &list);
        }
        if (num > 1)
            fail(parse, "ambiguous option: %.200s could match " STR_FORMAT, text,
                 STR_ARG(buf_str(&list)));
        buf_deinit(&list);
        found = num == 1;
    }
    if (found && is_taken(line, match->option) && !match->dotted)
        return match->option;
    if (parse->exit_status < 0)
        add_rest(parse, text);
    return NULL;
}

static void take_option(struct parse *parse, const struct option_match *match)
{
    const struct command_line *line = parse->line;
    const struct option *option = match->option;
    struct error err = {0};
    enum status status;
    if (!option_takes_value(option)) {
        if (match->value) {
            fail(parse, "argument --%s: ignored explicit argument '%.200s'", option->name,
                 match->value);
            return;
        }
        status = option_set(line->target, option, match->negated ? "False" : "True", &err);
    } else {
        const char **values = arena_array(line->target.arena, const char *, parse->argc + 1);
        int32_t num = 0;
        if (match->value)
            values[num++] = match->value;
        while (!match->value && parse->next < parse->argc &&
               (num == 0 || option->kind == OPTION_LIST) &&
               !option_is_spelled(parse->argv[parse->next]))
            values[num++] = parse->argv[parse->next++];
        if (num == 0) {
            fail(parse, "argument --%s: expected %s argument", option->name,
                 option->kind == OPTION_LIST ? "at least one" : "one");
            return;
        }
        status = option->kind == OPTION_LIST
                     ? option_set_list(line->target, option, values, num, &err)
                     : option_set(line->target, option, values[0], &err);
    }
    if (line->given)
        line->given[option - line->table] = true;
    if (status != STATUS_OK)
        fail(parse, "argument --%s: %s", option->name, err.message);
}

enum options_outcome command_line_parse(const struct command_line *line, int argc, char **argv,
                                        FILE *out, FILE *err_out, int *exit_status)
{
    struct parse parse = {.line = line,
                          .out = out,
                          .err_out = err_out,
                          .argc = argc,
                          .argv = argv,
                          .exit_status = -1};
    option_set_defaults(line->target, line->table, line->num_options);
    if (line->rest)
        *line->rest = (struct str_list){arena_array(line->target.arena, const char *, argc + 1), 0};
    while (parse.next < argc && parse.exit_status < 0) {
        const char *text = argv[parse.next++];
        struct option_match match = {0};
        if (strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0)
            print_help(&parse);
        else if (!option_is_spelled(text))
            add_rest(&parse, text);
        else if (find(&parse, text, &match))
            take_option(&parse, &match);
    }
    if (parse.exit_status < 0)
        return OPTIONS_RUN;
    *exit_status = parse.exit_status;
    return OPTIONS_EXIT;
}
