// Expected values of the fixture models (tests/fixtures/README.md), read with jansson.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/arena.h"

static inline json_t *golden_load(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!json)
        fail_msg("%s: %s", path, error.text);
    return json;
}

static inline json_t *golden_get(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!value)
        fail_msg("no key %s", key);
    return value;
}

static inline int32_t *golden_ids(const json_t *array, struct arena *arena, int32_t *count)
{
    *count = (int32_t)json_array_size(array);
    int32_t *ids = arena_array(arena, int32_t, *count + 1);
    for (int32_t i = 0; i < *count; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return ids;
}

static inline double golden_number(const json_t *array, int32_t i)
{
    json_t *value = json_array_get(array, (size_t)i);
    assert_true(json_is_number(value));
    return json_number_value(value);
}
