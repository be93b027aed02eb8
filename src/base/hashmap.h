// A hash table from byte strings to 64-bit values, open addressing, insertion only.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct hashmap_entry {
    struct str key; // borrowed from the caller, who keeps it alive
    int64_t value;
    uint64_t hash; // 0: empty
};

/** `= {0}` is a valid empty table. */
struct hashmap {
    struct hashmap_entry *entries;
    size_t len, capacity; // capacity is 0 or a power of two
};

void hashmap_deinit(struct hashmap *map);

/** Room for `count` keys without growing. */
void hashmap_reserve(struct hashmap *map, size_t count);

/** Sets the value of `key`; true if the key is new. */
bool hashmap_set(struct hashmap *map, struct str key, int64_t value);

/** True and `*value` if the key is there. */
bool hashmap_get(const struct hashmap *map, struct str key, int64_t *value);
