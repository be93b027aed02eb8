// A checkpoint on disk as named tensors: a directory with one model.safetensors, or with
// model.safetensors.index.json and the shards that it names.
//
// Where an index exists it alone counts: other files in the directory, and tensors of a shard that
// the index places elsewhere, are not looked at.
#pragma once

#include <stddef.h>

#include "base/arena.h"
#include "base/hashmap.h"
#include "base/status.h"
#include "base/str.h"
#include "model_loader/safetensors.h"

/** An open checkpoint. `= {0}` is a valid closed one. Immutable once open. */
struct checkpoint {
    const char *dir;
    struct safetensors *files;
    size_t num_files;
    const struct safetensor **tensors;
    size_t num_tensors;
    struct hashmap by_name; // name -> index in tensors
    struct arena arena;
};

/**
 * Maps every file of the checkpoint in `dir` and checks all headers; no weight is read.
 * Errors: NOT_FOUND (no checkpoint, a shard, a tensor in its shard), INVALID, UNSUPPORTED, IO; the
 * message names file and tensor.
 */
NODISCARD enum status checkpoint_open(struct checkpoint *checkpoint, const char *dir,
                                      struct error *err);
void checkpoint_close(struct checkpoint *checkpoint);

/** The index of the tensor called `name` in checkpoint->tensors, or -1. */
int64_t checkpoint_find(const struct checkpoint *checkpoint, struct str name);
