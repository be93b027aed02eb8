// A hash table from byte strings to 64-bit values, open addressing, insertion only.
#include "base/hashmap.h"

#include "base/memory.h"

static uint64_t hash_of(struct str key)
{
    uint64_t hash = str_hash(key);
    return hash ? hash : 1;
}

// The entry of `key`, or the empty one where it would go. The table is never full.
static struct hashmap_entry *find(struct hashmap_entry *entries, size_t capacity, struct str key,
                                  uint64_t hash)
{
    size_t i = hash & (capacity - 1);
    while (entries[i].hash != 0 && !(entries[i].hash == hash && str_eq(entries[i].key, key)))
        i = (i + 1) & (capacity - 1);
    return &entries[i];
}

void hashmap_deinit(struct hashmap *map)
{
    free(map->entries);
    *map = (struct hashmap){0};
}

void hashmap_reserve(struct hashmap *map, size_t count)
{
    size_t capacity = map->capacity ? map->capacity : 16;
    while (capacity < count + count / 2 + 1)
        capacity *= 2;
    if (capacity == map->capacity)
        return;
    struct hashmap_entry *entries = xcalloc(capacity, sizeof(*entries));
    for (size_t i = 0; i < map->capacity; i++) {
        const struct hashmap_entry *old = &map->entries[i];
        if (old->hash != 0)
            *find(entries, capacity, old->key, old->hash) = *old;
    }
    free(map->entries);
    map->entries = entries;
    map->capacity = capacity;
}

bool hashmap_set(struct hashmap *map, struct str key, int64_t value)
{
    hashmap_reserve(map, map->len + 1);
    uint64_t hash = hash_of(key);
    struct hashmap_entry *entry = find(map->entries, map->capacity, key, hash);
    bool is_new = entry->hash == 0;
    if (is_new) {
        *entry = (struct hashmap_entry){.key = key, .hash = hash};
        map->len++;
    }
    entry->value = value;
    return is_new;
}

bool hashmap_get(const struct hashmap *map, struct str key, int64_t *value)
{
    if (map->len == 0)
        return false;
    const struct hashmap_entry *entry = find(map->entries, map->capacity, key, hash_of(key));
    if (entry->hash == 0)
        return false;
    *value = entry->value;
    return true;
}
