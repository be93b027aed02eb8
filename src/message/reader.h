// A cursor over one MessagePack frame that trusts nothing: every length is compared with the bytes
// that are left before it is believed, and nothing is allocated on a frame's word.
//
// The first failure sticks: later reads return zeros and move nothing, so that a decoder reads as a
// list of its fields and asks once at the end. Loops over a count from reader_array() are bounded
// by the frame's real size.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

struct reader {
    const uint8_t *begin, *at, *end;
    struct error *err; // may be NULL
    enum status status;
};

void reader_init(struct reader *reader, struct str frame, struct error *err);

static inline bool reader_ok(const struct reader *reader)
{
    return reader->status == STATUS_OK;
}

/** Notes a failure at the present position, unless there is one already. */
void reader_fail(struct reader *reader, const char *field, const char *format, ...)
    PRINTF_FORMAT(3, 4);

/** A frame must end where its last field ends. */
enum status reader_finish(struct reader *reader);

/** An integer of any width in [min, max]. */
int64_t reader_int(struct reader *reader, const char *field, int64_t min, int64_t max);
int32_t reader_i32(struct reader *reader, const char *field, int32_t min, int32_t max);
uint64_t reader_u64(struct reader *reader, const char *field);
bool reader_bool(struct reader *reader, const char *field);

/** A float in [min, max], where an infinite bound lets that infinity pass; never a NaN. */
float reader_float(struct reader *reader, const char *field, float min, float max);

/** Bytes; borrowed from the frame. */
struct str reader_bin(struct reader *reader, const char *field, size_t max_bytes);

/** Opens an array of `min` to `max` elements that take at least `element_bytes` each. */
int32_t reader_array(struct reader *reader, const char *field, int32_t min, int32_t max,
                     size_t element_bytes);

/** Takes a nil if the next value is one. */
bool reader_take_nil(struct reader *reader);

/** A bin of little-endian numbers, copied into `arena`; NULL when there are none. */
const int32_t *reader_token_ids(struct reader *reader, const char *field, int32_t max,
                                struct arena *arena, int32_t *num);
const uint32_t *reader_u32s(struct reader *reader, const char *field, int32_t max,
                            struct arena *arena, int32_t *num);
const uint64_t *reader_u64s(struct reader *reader, const char *field, int32_t max,
                            struct arena *arena, int32_t *num);
const float *reader_floats(struct reader *reader, const char *field, int32_t max, float min_value,
                           float max_value, struct arena *arena, int32_t *num);
