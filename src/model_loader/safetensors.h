// One safetensors file, mapped into memory: 8 bytes of header length (little-endian), a JSON header
// {name: {"dtype", "shape", "data_offsets": [begin, end]}}, then the tensors' bytes.
//
// The header is believed only after it was checked against the file: every tensor's bytes follow
// from its dtype and shape, and all together cover the data section without a hole or an overlap.
// Nothing outside the mapping is ever read.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/hashmap.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "base/str.h"

enum { SAFETENSORS_MAX_DIMS = 8 };

/** A named tensor within the mapping. */
struct safetensor {
    struct str name;
    const char *file; // path of the file, for messages
    enum dtype dtype;
    int32_t ndim; // 0: one element
    int64_t shape[SAFETENSORS_MAX_DIMS];
    const void *data; // any alignment
    size_t size_bytes;
};

/** An open file. `= {0}` is a valid closed one. Immutable once open. */
struct safetensors {
    const char *path;
    struct mapped_file map;
    struct safetensor *tensors; // in the order of the header
    size_t num_tensors;
    struct hashmap by_name; // name -> index in tensors
    struct arena arena;
};

/**
 * Maps a file and checks its header; no tensor's bytes are read.
 * Errors: NOT_FOUND, IO, INVALID (malformed; cut short), UNSUPPORTED (a dtype of the format that
 * nothing here computes with), TOO_LARGE; the message names file, tensor and reason.
 */
NODISCARD enum status safetensors_open(struct safetensors *file, const char *path,
                                       struct error *err);

/** As safetensors_open() for bytes in memory, which the caller keeps alive. */
NODISCARD enum status safetensors_parse(struct safetensors *file, struct str bytes,
                                        const char *name, struct error *err);
void safetensors_close(struct safetensors *file);

/** The tensor called `name`, or NULL. */
const struct safetensor *safetensors_find(const struct safetensors *file, struct str name);

/** The format's name of a dtype, "BF16"; static text. */
const char *safetensors_dtype_name(enum dtype dtype);

/** "F32 [64, 32]", in `arena`. */
const char *safetensor_describe(const struct safetensor *tensor, struct arena *arena);
