// The sets of flags that a sweep goes through, from a file:
//
//   [{"max_num_seqs": 8}, {"max_num_seqs": 32, "enable_prefix_caching": false}]
//   {"small": {"max_num_seqs": 8}, "large": {"max_num_seqs": 32}}
#pragma once

#include <jansson.h>

#include "config/options.h"

/** A set of flags. Its name is the set's own ("_benchmark_name", or its key), or is made of its
 *  flags: "max_num_seqs=8-dtype=auto". It can be part of a file's name. */
struct sweep_params {
    const char *name;
    json_t *values; // an object: flag → string, number, boolean, list of these, or object
};

struct sweep_params_list {
    struct sweep_params *items;
    int32_t num;
    bool is_given; // there is a file; without one there is one set, which is empty
};

/**
 * Reads the sets of `path` (NULL: none). Names live in `arena`. Errors: NOT_FOUND, INVALID (no such
 * file, no JSON of that shape, two sets of one name). End with sweep_params_deinit() in any case.
 */
NODISCARD enum status sweep_params_load(struct sweep_params_list *list, const char *path,
                                        struct arena *arena, struct error *err);
void sweep_params_deinit(struct sweep_params_list *list);

/** Puts the flags of a set into a command. */
void sweep_params_apply(const json_t *values, struct str_list *words, struct arena *arena);

/**
 * Whether a server's and a benchmark's set belong together: for each link "a=b" both have their
 * flag and the values are equal. The links were checked by sweep_links_check().
 */
bool sweep_links_match(const struct str_list *links, const json_t *serve, const json_t *bench);

/** Errors: INVALID (not "a=b", or a flag that no set has). */
NODISCARD enum status sweep_links_check(const struct str_list *links,
                                        const struct sweep_params_list *serve,
                                        const struct sweep_params_list *bench, struct error *err);
