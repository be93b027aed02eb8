// Memory for short lives: many allocations, freed in one move.
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include "base/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif

#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(ptr, size) ASAN_POISON_MEMORY_REGION(ptr, size)
#define UNPOISON(ptr, size) ASAN_UNPOISON_MEMORY_REGION(ptr, size)
enum { GAP_BYTES = 64 };
#else
#define POISON(ptr, size) ((void)0)
#define UNPOISON(ptr, size) ((void)0)
enum { GAP_BYTES = 0 };
#endif

enum { FIRST_CHUNK_BYTES = 16 * 1024, MAX_DOUBLED_BYTES = 16 * 1024 * 1024 };

struct arena_chunk {
    struct arena_chunk *older;
    size_t capacity;
    _Alignas(64) char data[];
};

static void add_chunk(struct arena *arena, size_t need)
{
    size_t capacity = FIRST_CHUNK_BYTES;
    if (arena->chunk) {
        capacity = arena->chunk->capacity;
        if (capacity < MAX_DOUBLED_BYTES)
            capacity *= 2;
    }
    if (capacity < need)
        capacity = need;
    size_t total = (sizeof(struct arena_chunk) + capacity + 63) & ~(size_t)63;
    struct arena_chunk *chunk = aligned_alloc(64, total);
    if (!chunk) {
        fprintf(stderr, "out of host memory: %zu bytes were refused\n", total);
        abort();
    }
    chunk->older = arena->chunk;
    chunk->capacity = capacity;
    POISON(chunk->data, capacity);
    arena->chunk = chunk;
    arena->used = 0;
}

static void free_chunk(struct arena_chunk *chunk)
{
    UNPOISON(chunk->data, chunk->capacity);
    free(chunk);
}

void *arena_alloc(struct arena *arena, size_t size_bytes)
{
    CHECK(size_bytes < SIZE_MAX / 2);
    size_t align = size_bytes >= 64 ? 64 : 16;
    size_t start = (arena->used + align - 1) & ~(align - 1);
    if (!arena->chunk || start > arena->chunk->capacity ||
        size_bytes + GAP_BYTES > arena->chunk->capacity - start) {
        add_chunk(arena, size_bytes + GAP_BYTES);
        start = 0;
    }
    char *ptr = arena->chunk->data + start;
    UNPOISON(ptr, size_bytes);
    arena->used = start + size_bytes + GAP_BYTES;
    return ptr;
}

void *arena_alloc_array(struct arena *arena, size_t count, size_t size_bytes)
{
    size_t total = 0;
    CHECK(size_mul(&total, count, size_bytes));
    return arena_alloc(arena, total);
}

void *arena_calloc(struct arena *arena, size_t count, size_t size_bytes)
{
    void *ptr = arena_alloc_array(arena, count, size_bytes);
    memset(ptr, 0, count * size_bytes);
    return ptr;
}

char *arena_strdup(struct arena *arena, struct str text)
{
    char *copy = arena_alloc(arena, text.len + 1);
    if (text.len > 0)
        memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    return copy;
}

struct str arena_str(struct arena *arena, struct str text)
{
    return (struct str){arena_strdup(arena, text), text.len};
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(len >= 0);
    char *text = arena_alloc(arena, (size_t)len + 1);
    vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    return text;
}

struct arena_mark arena_mark(const struct arena *arena)
{
    return (struct arena_mark){arena->chunk, arena->used};
}

void arena_release(struct arena *arena, struct arena_mark mark)
{
    while (arena->chunk != mark.chunk) {
        if (!mark.chunk && !arena->chunk->older) { // back to empty: keep this one for the next time
            mark.used = 0;
            break;
        }
        struct arena_chunk *older = arena->chunk->older;
        free_chunk(arena->chunk);
        arena->chunk = older;
    }
    arena->used = mark.used;
    if (arena->chunk)
        POISON(arena->chunk->data + mark.used, arena->chunk->capacity - mark.used);
}

void arena_reset(struct arena *arena)
{
    if (!arena->chunk)
        return;
    struct arena_chunk *older = arena->chunk->older; // the newest is the largest
    while (older) {
        struct arena_chunk *next = older->older;
        free_chunk(older);
        older = next;
    }
    arena->chunk->older = NULL;
    arena->used = 0;
    POISON(arena->chunk->data, arena->chunk->capacity);
}

void arena_deinit(struct arena *arena)
{
    while (arena->chunk) {
        struct arena_chunk *older = arena->chunk->older;
        free_chunk(arena->chunk);
        arena->chunk = older;
    }
    arena->used = 0;
}
