// What an option is: the rows of options.c and of other commands' tables, and what the options_*.c
// files share.
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "base/buf.h"
#include "config/options.h"

enum option_kind {
    OPTION_STRING,      // const char *
    OPTION_INT,         // int32_t
    OPTION_INT64,       // int64_t
    OPTION_HUMAN32,     // int32_t; 32k, 32K ...
    OPTION_HUMAN64,     // int64_t; 32k, 32K ...
    OPTION_MODEL_LEN,   // int64_t; 32k, 32K, auto, -1
    OPTION_DOUBLE,      // double
    OPTION_FLAG,        // bool; --x only
    OPTION_FLAG_OFF,    // bool; --x stores false
    OPTION_BOOL,        // bool; --x and --no-x
    OPTION_TRISTATE,    // enum tristate; --x and --no-x
    OPTION_ENUM,        // int: the position among `choices`
    OPTION_LOG_LEVEL,   // enum log_level
    OPTION_LIST,        // struct str_list; one or more values
    OPTION_COMMA_LIST,  // struct str_list; one value, split at commas
    OPTION_JSON_OBJECT, // const char *: the checked text
    OPTION_JSON_LIST,   // const char *: the checked text of a list of strings
    OPTION_HELP,        // no field: acts while parsing
    OPTION_CONFIG,      // no field: acts before parsing
    OPTION_MODEL,       // const char *; the spelling of the positional as an option
};

enum option_group {
    GROUP_OPTIONS,
    GROUP_FRONTEND,
    GROUP_MODEL,
    GROUP_LOAD,
    GROUP_ATTENTION,
    GROUP_MAMBA,
    GROUP_STRUCTURED_OUTPUTS,
    GROUP_PARALLEL,
    GROUP_CACHE,
    GROUP_OFFLOAD,
    GROUP_MULTIMODAL,
    GROUP_LORA,
    GROUP_OBSERVABILITY,
    GROUP_SCHEDULER,
    GROUP_COMPILATION,
    GROUP_KERNEL,
    GROUP_VLLM,
    NUM_GROUPS,
};

#define NO_FIELD SIZE_MAX

/**
 * One option. With a field it is implemented: the value lands in the command's struct. Without one
 * it is known and refused by name, except for the values that describe what we do anyway.
 */
struct option {
    const char *name;  // without dashes
    const char *alias; // with its dash: "-tp"; NULL: none
    enum option_kind kind;
    int group;                // enum option_group; other commands have groups of their own
    size_t offset;            // in struct serve_options (or the command's own), or NO_FIELD
    const char *default_text; // "None": not given
    const char *choices;      // "a,b,c": other values are a usage error; NULL: any
    const char *accepts;      // "a,b": values that work; "*": all. NULL: all with a field, else the
                              // default alone
    const char *range;        // "[1,inf)"; NULL: any
    const char *note;         // a warning to print when it is given; NULL: none
    const char *help;
};

// A row of a table: with a field of a command's struct, and without. What follows `help_` are
// designated initialisers.
#define OPTION_ROW(type_, group_, name_, kind_, member_, default_, help_, ...)                   \
    {                                                                                            \
        .name = name_, .kind = OPTION_##kind_, .group = group_,                                  \
        .offset = offsetof(type_, member_), .default_text = default_, .help = help_, __VA_ARGS__ \
    }
#define OPTION_ROW_WITHOUT_FIELD(group_, name_, kind_, default_, help_, ...)        \
    {                                                                               \
        .name = name_, .kind = OPTION_##kind_, .group = group_, .offset = NO_FIELD, \
        .default_text = default_, .help = help_, __VA_ARGS__                        \
    }

const struct option *option_table(size_t *count);
const char *option_group_title(enum option_group group);
const char *option_group_description(enum option_group group);

/** Why `name` (without dashes) is not an option any more; NULL: it never was. */
const char *option_removed_hint(const char *name);

/** Whether the option has a --no-x form; whether it takes a value. */
bool option_is_pair(const struct option *option);
bool option_takes_value(const struct option *option);

/** Where values land: the struct in which `offset` counts, and the arena of its strings. */
struct option_target {
    void *fields;
    struct arena *arena;
};

static inline struct option_target serve_options_target(struct serve_options *options)
{
    return (struct option_target){options, &options->arena};
}

/**
 * Checks `text` and stores it. Errors: INVALID (not of this kind, or no choice: a usage error),
 * UNSUPPORTED (known, but not here), TOO_LARGE (out of range: a configuration error).
 */
NODISCARD enum status option_set(struct option_target target, const struct option *option,
                                 const char *text, struct error *err);

/** As option_set() for the several values of a list. */
NODISCARD enum status option_set_list(struct option_target target, const struct option *option,
                                      const char *const *items, int32_t num_items,
                                      struct error *err);

/** The word at `position` among the row's choices. */
struct str option_choice(const struct option *option, int position);

/** Sets every row of a table to its default. */
void option_set_defaults(struct option_target target, const struct option *table, size_t count);

// ---- options_match.c: finding the row that a word of the command line spells ----

/** An option as it was spelled: which one, whether as --no-x, and a value after '='. */
struct option_match {
    const struct option *option;
    bool negated;
    const char *value;  // NULL: none
    const char *dotted; // "a.b" of --option.a.b; NULL: none
};

/** Whether `text` is spelled as an option; "-1" and texts with blanks are values. */
bool option_is_spelled(const char *text);

/** Fills value and dotted; returns the name before '=' and '.', '_' turned into '-', in `arena`. */
char *option_match_split(const char *text, struct arena *arena, struct option_match *match);

/** The row that `name` spells in full, --no-x and aliases included. */
bool option_match_exact(const struct option *table, size_t count, const char *name,
                        struct option_match *match);

/** -O3, -qawq: the value follows a one-letter option without a blank. */
bool option_match_attached(const struct option *table, size_t count, const char *text,
                           struct option_match *match);

/** The rows whose names begin with `name`: their number, and their names in `list`. */
int option_match_prefix(const struct option *table, size_t count, const char *name,
                        struct option_match *match, struct buf *list);

/** Empty options with every row's default. */
void options_set_defaults(struct serve_options *options);

/** "--data-parallel-size/-dp", "--x/--no-x": how error messages name it. Lives in `arena`. */
const char *option_display_name(const struct option *option, struct arena *arena);

/** A plain integer as Python reads it. Errors: INVALID. */
NODISCARD enum status plain_int_parse(struct str text, int64_t *out, struct error *err);

/** Prints one row of help: names, then what it does and its default. */
void option_print_help(FILE *out, const struct option *option);

/** Prints `text` from column `indent` on, wrapped at spaces. */
void option_print_wrapped(FILE *out, const char *text, int indent);

/** Prints the help that `topic` asks for (NULL: the overview). */
void options_help(FILE *out, const char *topic);
extern const char options_usage[];

/**
 * Turns a YAML mapping into option words ("--port", "8000" ...) in `arena`; `*model` is the value
 * of "model" or stays. `name` stands in messages. Errors: INVALID, TOO_LARGE.
 */
NODISCARD enum status options_yaml_parse(struct str text, const char *name, struct arena *arena,
                                         struct str_list *words, const char **model,
                                         struct error *err);

/** As options_yaml_parse() for a file; the name must end in .yaml or .yml. */
NODISCARD enum status options_yaml_load(const char *path, struct arena *arena,
                                        struct str_list *words, const char **model,
                                        struct error *err);

/** `text` with bare numbers such as 80m written out; quoted text stays. Lives in `arena`. */
const char *options_json_expand_suffixes(const char *text, struct arena *arena);

/**
 * Sets "a.b.c" (a final '+' appends comma-separated text to a list) in the object `root`.
 * `*is_new` tells whether the key was not there. Errors: INVALID.
 */
NODISCARD enum status options_json_set_dotted(json_t *root, struct str path, const char *value,
                                              bool *is_new, struct error *err);

/** What the command line left open. */
struct options_given {
    bool api_key, log_level, uvicorn_log_level;
};

/** Reads the environment over `options`; warnings go to `err_out`. Errors: INVALID. */
NODISCARD enum status options_read_environment(struct serve_options *options,
                                               const struct options_given *given, FILE *err_out,
                                               struct error *err);

/** Fills what follows from other options and checks what needs no model. Errors: INVALID,
 *  NOT_FOUND, UNSUPPORTED. */
NODISCARD enum status options_finish(struct serve_options *options, FILE *err_out,
                                     struct error *err);

/** options_parse_serve() with its output streams named. */
enum options_outcome options_parse_serve_to(struct serve_options *options, int argc, char **argv,
                                            FILE *out, FILE *err_out, int *exit_status);
