// Builds safetensors files for tests, right and wrong ones, in a folder of their own.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"

/** The folder; made by make_folder(), emptied and removed by remove_folder(). */
static char folder[64];

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/vllm-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"model.safetensors", "model.safetensors.index.json",
                                        "m-1.safetensors",   "m-2.safetensors",
                                        "m-3.safetensors",   "config.json",
                                        "t.safetensors",     "tokenizer_config.json"};
    char path[128];
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, NAMES[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static inline void append_u64_le(struct buf *out, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        buf_append_char(out, (char)(value >> (8 * i)));
}

/** Length field, header, and `data_bytes` bytes 0, 1, 2 ... */
static inline void build_file(struct buf *out, const char *header, size_t data_bytes)
{
    buf_clear(out);
    append_u64_le(out, strlen(header));
    buf_append_c(out, header);
    for (size_t i = 0; i < data_bytes; i++)
        buf_append_char(out, (char)i);
}

static inline void write_bytes(const char *name, struct str bytes)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wbe");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes.ptr, 1, bytes.len, file), bytes.len);
    assert_int_equal(fclose(file), 0);
}

static inline void write_tensors(const char *name, const char *header, size_t data_bytes)
{
    struct buf file = {0};
    build_file(&file, header, data_bytes);
    write_bytes(name, buf_str(&file));
    buf_deinit(&file);
}
