// The command line of a command that is described by a table of options: parsing and help.
// (`vllm serve` has a parser of its own, options_parse.c, with a configuration file and a model.)
#pragma once

#include <stdio.h>

#include "config/option_table.h"

/** Everything is borrowed for the call. */
struct command_line {
    const char *program;     // "vllm bench serve"
    const char *usage;       // what follows the program's name in the usage line
    const char *description; // one sentence
    const struct option *table;
    size_t num_options;
    const char *const *group_titles; // by option.group
    int num_groups;
    uint32_t groups; // a bit for each group that this command takes
    struct option_target target;
    bool *given; // [num_options], zeroed: which ones the command line set; NULL: no matter
    struct str_list *rest; // unknown words, in order; NULL: they are errors
    const char *rest_help; // what the unknown words are for; NULL: nothing
};

/**
 * Sets all defaults, then what the words say. With `rest`, names must be spelled in full, since an
 * abbreviation may belong to the other command. OPTIONS_EXIT: help or an error was printed, and
 * `*exit_status` is what to exit with (0 after help, 2 after a usage error).
 */
enum options_outcome command_line_parse(const struct command_line *line, int argc, char **argv,
                                        FILE *out, FILE *err_out, int *exit_status);
