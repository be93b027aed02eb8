// Heap memory whose failure ends the process with a message.
#include "base/memory.h"

#include <string.h>

static void *check_allocated(void *ptr, size_t size_bytes)
{
    if (!ptr && size_bytes > 0) {
        fprintf(stderr, "out of host memory: %zu bytes were refused\n", size_bytes);
        abort();
    }
    return ptr;
}

void *xmalloc(size_t size_bytes)
{
    return check_allocated(malloc(size_bytes), size_bytes);
}

void *xcalloc(size_t count, size_t size_bytes)
{
    return check_allocated(calloc(count, size_bytes), count > 0 ? size_bytes : 0);
}

void *xrealloc(void *ptr, size_t size_bytes)
{
    return check_allocated(realloc(ptr, size_bytes), size_bytes);
}

void *xcalloc_aligned(size_t count, size_t size_bytes, size_t alignment)
{
    size_t total;
    if (!size_mul(&total, count, size_bytes))
        total = SIZE_MAX / alignment * alignment; // which no machine has
    void *ptr = check_allocated(aligned_alloc(alignment, total), total);
    if (ptr)
        memset(ptr, 0, total);
    return ptr;
}

char *xstrdup(const char *text)
{
    return xstrndup(text, strlen(text));
}

char *xstrndup(const char *text, size_t len)
{
    char *copy = xmalloc(len + 1);
    memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}
