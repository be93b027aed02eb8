// Decomposition and composition are utf8proc's. Its ordering of combining marks takes quadratic
// time on a long run of them, which anybody can send; so each run is ordered here by counting.
#include "tokenizer/unicode_normal_form.h"

#include <utf8proc.h>

#include "base/memory.h"
#include "base/utf8.h"

// Code points below are the same in every form but KC and KD of Latin-1, decomposed Latin-1 apart.
#define FIRST_COMBINING 0x300

/** Whether every code point of `text` is below FIRST_COMBINING (or below U+0080). */
static bool all_below(struct str text, bool ascii)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (ascii ? c >= 0x80 : c >= 0xCC) // 0xCC 0x80 is U+0300
            return false;
    }
    return true;
}

static int combining_class(int32_t code_point)
{
    if (code_point < FIRST_COMBINING)
        return 0;
    return (int)utf8proc_get_property(code_point)->combining_class;
}

/** Orders one run of combining marks by their classes, keeping the order of equals. */
static void sort_run(int32_t *run, size_t len, int32_t *spare)
{
    size_t starts[256] = {0};
    for (size_t i = 0; i < len; i++)
        starts[combining_class(run[i])]++;
    size_t sum = 0;
    for (int class = 0; class < 256; class ++) {
        size_t count = starts[class];
        starts[class] = sum;
        sum += count;
    }
    for (size_t i = 0; i < len; i++)
        spare[starts[combining_class(run[i])]++] = run[i];
    memcpy(run, spare, len * sizeof(*run));
}

static void order_marks(int32_t *points, size_t len, struct arena *arena)
{
    for (size_t i = 0; i < len;) {
        if (combining_class(points[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i;
        bool ordered = true;
        for (; end < len && combining_class(points[end]) != 0; end++)
            ordered = ordered && (end == i ||
                                  combining_class(points[end - 1]) <= combining_class(points[end]));
        if (!ordered) {
            struct arena_mark mark = arena_mark(arena);
            sort_run(points + i, end - i, arena_array(arena, int32_t, end - i));
            arena_release(arena, mark);
        }
        i = end;
    }
}

/** The full decomposition of `text` into `*points`, which is grown as needed. */
static size_t decompose(struct str text, utf8proc_option_t options, int32_t **points)
{
    size_t capacity = text.len + 64, num_points = 0, len;
    *points = xmalloc(capacity * sizeof(**points));
    for (size_t i = 0; i < text.len; i += len) {
        int32_t c = (int32_t)utf8_decode(str_slice(text, i, text.len), &len);
        if (num_points + 32 > capacity) { // the longest decomposition has 18 code points
            capacity = capacity * 2;
            *points = xrealloc(*points, capacity * sizeof(**points));
        }
        int boundary_class = 0;
        utf8proc_ssize_t count = utf8proc_decompose_char(c, *points + num_points,
                                                         (utf8proc_ssize_t)(capacity - num_points),
                                                         options, &boundary_class);
        if (count < 0) { // not assigned: stands for itself
            (*points)[num_points] = c;
            count = 1;
        }
        num_points += (size_t)count;
    }
    return num_points;
}

struct str unicode_normalize(enum unicode_normal_form form, struct str text, struct arena *arena)
{
    if (all_below(text, form != UNICODE_NORMAL_FORM_C))
        return text;
    bool compose = form == UNICODE_NORMAL_FORM_C || form == UNICODE_NORMAL_FORM_KC;
    bool compatible = form == UNICODE_NORMAL_FORM_KC || form == UNICODE_NORMAL_FORM_KD;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (compatible)
        options |= UTF8PROC_COMPAT;

    int32_t *points;
    size_t num_points = decompose(text, options, &points);
    order_marks(points, num_points, arena);
    if (compose) {
        utf8proc_ssize_t composed = utf8proc_normalize_utf32(points, (utf8proc_ssize_t)num_points,
                                                             UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (composed >= 0)
            num_points = (size_t)composed;
    }
    char *out = arena_alloc(arena, num_points * 4);
    size_t out_len = 0;
    for (size_t i = 0; i < num_points; i++)
        out_len += utf8_encode((uint32_t)points[i], out + out_len);
    free(points);
    return (struct str){out, out_len};
}
