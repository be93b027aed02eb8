// The command line of `vllm serve`, in the manner of Python's argparse, which scripts rely on:
// abbreviations, "--opt value" and "--opt=value", lists that take what follows, '_' for '-'.
//
// First the --config file is read, and its words are put right after the model, so that what the
// command line says later wins. Then one pass over all words.
#include "config/option_table.h"

#include <ctype.h>
#include <string.h>

#include "base/memory.h"

enum { GIVEN_IN_FILE = 1, GIVEN_ON_COMMAND_LINE = 2 };
enum { EXIT_USAGE = 2, EXIT_CONFIGURATION = 1 };

struct word {
    const char *text;
    bool from_file;
};

struct parse {
    struct serve_options *options;
    FILE *out, *err_out;
    int exit_status;
    struct word *words;
    size_t num_words;
    const struct option *table;
    size_t num_options;
    uint8_t *given;  // [num_options]
    json_t **dotted; // [num_options]
    const char *model, *model_option;
    struct buf unknown;           // the words nobody wants, with blanks between them
    int num_unknown;              // one may be empty
    const char *hint_name, *hint; // of the first removed option
};

static void fail(struct parse *parse, int exit_status, const char *format, ...) PRINTF_FORMAT(3, 4);
static void fail(struct parse *parse, int exit_status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (exit_status == EXIT_USAGE)
        fputs(options_usage, parse->err_out);
    fputs("vllm serve: error: ", parse->err_out);
    vfprintf(parse->err_out, format, args);
    fputc('\n', parse->err_out);
    va_end(args);
    parse->exit_status = exit_status;
}

static void warn(struct parse *parse, const char *format, ...) PRINTF_FORMAT(2, 3);
static void warn(struct parse *parse, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("vllm serve: warning: ", parse->err_out);
    vfprintf(parse->err_out, format, args);
    fputc('\n', parse->err_out);
    va_end(args);
}

/** Names that begin with `name`. One: it is meant. Several: an error. */
static bool find_prefix(struct parse *parse, const char *name, const char *text,
                        struct option_match *match)
{
    struct buf list = {0};
    int num_found = option_match_prefix(parse->table, parse->num_options, name, match, &list);
    if (num_found > 1)
        fail(parse, EXIT_USAGE, "ambiguous option: %.200s could match " STR_FORMAT, text,
             STR_ARG(buf_str(&list)));
    buf_deinit(&list);
    return num_found == 1;
}

static void add_unknown(struct parse *parse, const char *text)
{
    if (parse->num_unknown++ > 0)
        buf_append_char(&parse->unknown, ' ');
    buf_append_c(&parse->unknown, text);
}

/** Finds the option that `text` spells. False: none (noted as unknown) or an error. */
static bool find_option(struct parse *parse, const char *text, struct option_match *match)
{
    *match = (struct option_match){0};
    const struct option *table = parse->table;
    char *name = option_match_split(text, &parse->options->arena, match);
    if (option_match_exact(table, parse->num_options, name, match) ||
        option_match_attached(table, parse->num_options, text, match))
        return true;
    // A removed name is never short for another: --device is not --device-ids.
    const char *hint = strncmp(name, "--", 2) == 0 ? option_removed_hint(name + 2) : NULL;
    if (!hint && name[1] != '\0' && find_prefix(parse, name, text, match))
        return true;
    if (parse->exit_status != 0)
        return false;
    add_unknown(parse, text);
    if (hint && !parse->hint) {
        parse->hint_name = name;
        parse->hint = hint;
    }
    return false;
}

/** Turns what option_set() says into the message and the exit status that scripts know. */
static void report(struct parse *parse, const struct option *option, enum status status,
                   const struct error *err)
{
    if (status == STATUS_OK)
        return;
    if (status == STATUS_INVALID)
        fail(parse, EXIT_USAGE, "argument %s: %s",
             option_display_name(option, &parse->options->arena), err->message);
    else
        fail(parse, status == STATUS_UNSUPPORTED ? EXIT_USAGE : EXIT_CONFIGURATION, "%s",
             err->message);
}

static void note_given(struct parse *parse, const struct option *option, bool from_file)
{
    uint8_t mark = from_file ? GIVEN_IN_FILE : GIVEN_ON_COMMAND_LINE;
    uint8_t *given = &parse->given[option - parse->table];
    if (*given & mark)
        warn(parse, "Found duplicate keys --%s", option->name);
    else if (option->note)
        warn(parse, "--%s %s", option->name, option->note);
    *given |= mark;
}

/** The words from `*next` on that are values: at most `max`. */
static size_t count_values(const struct parse *parse, size_t next, size_t max)
{
    size_t num = 0;
    while (num < max && next + num < parse->num_words &&
           !option_is_spelled(parse->words[next + num].text) &&
           parse->words[next + num].from_file == parse->words[next - 1].from_file)
        num++;
    return num;
}

static void set_dotted(struct parse *parse, const struct option_match *match, const char *value)
{
    size_t index = (size_t)(match->option - parse->table);
    if (match->option->kind != OPTION_JSON_OBJECT) {
        fail(parse, EXIT_USAGE, "argument %s: takes no keys, but '.%.200s' was given",
             option_display_name(match->option, &parse->options->arena), match->dotted);
        return;
    }
    if (!parse->dotted[index])
        parse->dotted[index] = json_object();
    struct error err = {0};
    bool is_new = true;
    enum status status = options_json_set_dotted(parse->dotted[index], str_from(match->dotted),
                                                 value, &is_new, &err);
    if (status == STATUS_OK && !is_new)
        warn(parse, "Found duplicate keys --%s.%s", match->option->name, match->dotted);
    report(parse, match->option, status, &err);
}

static void set_flag(struct parse *parse, const struct option_match *match, bool from_file)
{
    struct error err = {0};
    if (match->value || match->dotted) {
        fail(parse, EXIT_USAGE, "argument %s: ignored explicit argument '%.200s'",
             option_display_name(match->option, &parse->options->arena),
             match->value ? match->value : match->dotted);
        return;
    }
    note_given(parse, match->option, from_file);
    report(parse, match->option,
           option_set(serve_options_target(parse->options), match->option,
                      match->negated ? "False" : "True", &err),
           &err);
}

static void set_values(struct parse *parse, const struct option_match *match,
                       const char *const *values, size_t num_values, bool from_file)
{
    const struct option *option = match->option;
    struct error err = {0};
    if (match->dotted) {
        set_dotted(parse, match, values[0]);
        return;
    }
    note_given(parse, option, from_file);
    if (option->kind == OPTION_LIST)
        report(parse, option,
               option_set_list(serve_options_target(parse->options), option, values,
                               (int32_t)num_values, &err),
               &err);
    else if (option->kind == OPTION_MODEL)
        parse->model_option = values[0];
    else
        report(parse, option,
               option_set(serve_options_target(parse->options), option, values[0], &err), &err);
}

/** One option at words[*next - 1] and its values. */
static void take_option(struct parse *parse, const struct option_match *match, size_t *next)
{
    const struct option *option = match->option;
    bool from_file = parse->words[*next - 1].from_file;
    if (option->kind == OPTION_HELP) {
        options_help(parse->out, match->value);
        parse->exit_status = -1; // ends the parse without an error
        return;
    }
    if (option->kind == OPTION_CONFIG) { // the two-word form was taken out before
        fail(parse, EXIT_USAGE, "argument --config: expected two words: --config FILE");
        return;
    }
    if (!option_takes_value(option)) {
        set_flag(parse, match, from_file);
        return;
    }
    if (match->value) {
        set_values(parse, match, (const char *const[]){match->value}, 1, from_file);
        return;
    }
    bool is_list = option->kind == OPTION_LIST && !match->dotted;
    size_t num = count_values(parse, *next, is_list ? SIZE_MAX : 1);
    // --hf-token alone means the stored token; there is nothing to use it for.
    bool may_be_bare = strcmp(option->name, "hf-token") == 0;
    if (num == 0 && may_be_bare) {
        set_values(parse, match, (const char *const[]){"True"}, 1, from_file);
        return;
    }
    if (num == 0) {
        fail(parse, EXIT_USAGE, "argument %s: expected %s",
             option_display_name(option, &parse->options->arena),
             is_list ? "at least one argument" : "one argument");
        return;
    }
    const char **values = arena_array(&parse->options->arena, const char *, num);
    for (size_t i = 0; i < num; i++)
        values[i] = parse->words[*next + i].text;
    *next += num;
    set_values(parse, match, values, num, from_file);
}

static void take_positional(struct parse *parse, const char *text)
{
    if (!parse->model)
        parse->model = text;
    else
        add_unknown(parse, text);
}

static void take_words(struct parse *parse)
{
    bool options_ended = false;
    for (size_t next = 0; next < parse->num_words && parse->exit_status == 0;) {
        const char *text = parse->words[next++].text;
        struct option_match match;
        if (options_ended || !option_is_spelled(text))
            take_positional(parse, text);
        else if (strcmp(text, "--") == 0)
            options_ended = true;
        else if (find_option(parse, text, &match))
            take_option(parse, &match, &next);
    }
}

/** --a.b v --a.c w become one object, as if given last. */
static void apply_dotted(struct parse *parse)
{
    for (size_t i = 0; i < parse->num_options && parse->exit_status == 0; i++) {
        if (!parse->dotted[i])
            continue;
        if (parse->given[i])
            warn(parse, "Found duplicate keys --%s", parse->table[i].name);
        char *text = json_dumps(parse->dotted[i], JSON_COMPACT);
        struct error err = {0};
        report(parse, &parse->table[i],
               option_set(serve_options_target(parse->options), &parse->table[i], text ? text : "",
                          &err),
               &err);
        free(text);
    }
}

static const char *find_help(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strncmp(argv[i], "--help", 6) == 0)
            return argv[i];
    }
    return NULL;
}

/** All words, those of the --config file after the model and before the others. */
static void collect_words(struct parse *parse, int argc, char **argv)
{
    struct arena *arena = &parse->options->arena;
    const char *file = NULL, *file_model = NULL;
    struct str_list from_file = {0};
    int config_at = -1;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--config") != 0)
            continue;
        if (config_at >= 0) {
            fail(parse, EXIT_USAGE, "More than one config file specified!");
            return;
        }
        if (i + 1 == argc || option_is_spelled(argv[i + 1])) {
            fail(parse, EXIT_USAGE,
                 "No config file specified! Please check your command-line arguments.");
            return;
        }
        config_at = i;
        file = argv[i + 1];
    }
    struct error err = {0};
    if (file && options_yaml_load(file, arena, &from_file, &file_model, &err) != STATUS_OK) {
        fail(parse, EXIT_CONFIGURATION, "%s", err.message);
        return;
    }
    bool has_model = argc > 0 && !option_is_spelled(argv[0]);
    parse->words = arena_array(arena, struct word, argc + from_file.len + 1);
    for (int i = 0; i < argc; i++) {
        if (i == (has_model ? 1 : 0)) {
            for (int32_t k = 0; k < from_file.len; k++)
                parse->words[parse->num_words++] = (struct word){from_file.items[k], true};
        }
        if (i != config_at && (config_at < 0 || i != config_at + 1))
            parse->words[parse->num_words++] = (struct word){argv[i], false};
    }
    parse->options->model = file_model; // the positional and --model win over it
    if (file && !file_model && !has_model && !find_help(argc, argv)) {
        for (int i = 0; i < argc; i++) {
            if (strcmp(argv[i], "--model") == 0 || strncmp(argv[i], "--model=", 8) == 0)
                return;
        }
        fail(parse, EXIT_CONFIGURATION,
             "No model specified! Please specify model either as a positional argument or in a "
             "config file.");
    }
}

/** Names without a model in front: the first name is easily taken for it. */
static void check_model_position(struct parse *parse, int argc, char **argv)
{
    if (argc == 0 || argv[0][0] != '-')
        return;
    bool has_names = false;
    for (int i = 0; i < argc; i++) {
        has_names |= strncmp(argv[i], "--served-model-name", 19) == 0 ||
                     strncmp(argv[i], "--served_model_name", 19) == 0;
        if (strcmp(argv[i], "--config") == 0 || strcmp(argv[i], "--model") == 0 ||
            strncmp(argv[i], "--model=", 8) == 0)
            return;
    }
    if (has_names)
        fail(parse, EXIT_USAGE,
             "`model` should be provided as the first positional argument when using `vllm "
             "serve`. i.e. `vllm serve <model> --<arg> <value>`.");
}

static void choose_model(struct parse *parse)
{
    const char *file_model = parse->options->model;
    if (parse->model_option)
        warn(parse, "With `vllm serve`, you should provide the model as a positional argument or "
                    "in a config file instead of via the `--model` option. The `--model` option "
                    "will be removed in a future version.");
    const char *model = parse->model          ? parse->model
                        : parse->model_option ? parse->model_option
                        : file_model          ? file_model
                                              : "Qwen/Qwen3-0.6B";
    parse->options->model = arena_strdup(&parse->options->arena, str_from(model));
}

static bool is_given(const struct parse *parse, const char *name)
{
    for (size_t i = 0; i < parse->num_options; i++) {
        if (strcmp(parse->table[i].name, name) == 0)
            return parse->given[i] != 0;
    }
    return false;
}

static void finish(struct parse *parse)
{
    struct options_given given = {
        .api_key = is_given(parse, "api-key"),
        .log_level = is_given(parse, "log-level"),
        .uvicorn_log_level = is_given(parse, "uvicorn-log-level"),
    };
    struct error err = {0};
    enum status status = options_read_environment(parse->options, &given, parse->err_out, &err);
    if (status == STATUS_OK)
        status = options_finish(parse->options, parse->err_out, &err);
    if (status != STATUS_OK)
        fail(parse, EXIT_CONFIGURATION, "%s", err.message);
}

static void run_parse(struct parse *parse, int argc, char **argv)
{
    collect_words(parse, argc, argv);
    if (parse->exit_status == 0)
        take_words(parse);
    if (parse->exit_status == 0 && parse->num_unknown > 0) {
        buf_append_char(&parse->unknown, '\0');
        if (parse->hint)
            fail(parse, EXIT_USAGE, "unrecognized arguments: %s (%s was removed: %s)",
                 parse->unknown.ptr, parse->hint_name, parse->hint);
        else
            fail(parse, EXIT_USAGE, "unrecognized arguments: %s", parse->unknown.ptr);
    }
    if (parse->exit_status == 0)
        check_model_position(parse, argc, argv);
    if (parse->exit_status == 0)
        apply_dotted(parse);
    if (parse->exit_status == 0) {
        choose_model(parse);
        finish(parse);
    }
}

enum options_outcome options_parse_serve_to(struct serve_options *options, int argc, char **argv,
                                            FILE *out, FILE *err_out, int *exit_status)
{
    options_set_defaults(options);
    struct parse parse = {.options = options, .out = out, .err_out = err_out};
    parse.table = option_table(&parse.num_options);
    parse.given = xcalloc(parse.num_options, sizeof(*parse.given));
    parse.dotted = xcalloc(parse.num_options, sizeof(*parse.dotted));
    run_parse(&parse, argc, argv);

    for (size_t i = 0; i < parse.num_options; i++)
        json_decref(parse.dotted[i]);
    free(parse.dotted);
    free(parse.given);
    buf_deinit(&parse.unknown);
    if (parse.exit_status == 0)
        return OPTIONS_RUN;
    options_deinit(options);
    *exit_status = parse.exit_status < 0 ? 0 : parse.exit_status;
    return OPTIONS_EXIT;
}

enum options_outcome options_parse_serve(struct serve_options *options, int argc, char **argv,
                                         int *exit_status)
{
    return options_parse_serve_to(options, argc, argv, stdout, stderr, exit_status);
}
