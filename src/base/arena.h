// Memory for short lives: many allocations, freed in one move.
//
// An arena grows by chunks. arena_reset() forgets everything but keeps the largest chunk, so that a
// loop that resets it settles and allocates no more. Under AddressSanitizer the gaps between
// allocations, and everything that was released, are poisoned.
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "base/str.h"

struct arena_chunk;

/** `= {0}` is a valid empty arena. One owner thread at a time. */
struct arena {
    struct arena_chunk *chunk; // the newest; older ones hang on it
    size_t used;               // bytes of the newest chunk
};

/** A point to return to. */
struct arena_mark {
    struct arena_chunk *chunk;
    size_t used;
};

/** Uninitialised memory, aligned to 64 bytes for 64 bytes or more, else to 16. Never NULL. */
void *arena_alloc(struct arena *arena, size_t size_bytes);

/** Zeroed memory for `count` elements. */
void *arena_calloc(struct arena *arena, size_t count, size_t size_bytes);

/** Room for `count` values of `type`, uninitialised. */
#define arena_array(arena, type, count) \
    ((type *)arena_alloc_array((arena), (size_t)(count), sizeof(type)))
void *arena_alloc_array(struct arena *arena, size_t count, size_t size_bytes);

/** A terminated copy in the arena. */
char *arena_strdup(struct arena *arena, struct str text);
struct str arena_str(struct arena *arena, struct str text);

/** printf into the arena; terminated. */
char *arena_printf(struct arena *arena, const char *format, ...) PRINTF_FORMAT(2, 3);

struct arena_mark arena_mark(const struct arena *arena);

/** Frees everything allocated since the mark. */
void arena_release(struct arena *arena, struct arena_mark mark);

/** Frees everything, keeps memory for the next round. */
void arena_reset(struct arena *arena);

/** Gives all memory back. The arena is empty and usable afterwards. */
void arena_deinit(struct arena *arena);
