// A cursor over one MessagePack frame that trusts nothing.
#include "message/reader.h"

#include <inttypes.h>
#include <stdarg.h>

void reader_init(struct reader *reader, struct str frame, struct error *err)
{
    const uint8_t *begin = (const uint8_t *)frame.ptr;
    *reader = (struct reader){
        .begin = begin, .at = begin, .end = frame.len > 0 ? begin + frame.len : begin, .err = err};
}

void reader_fail(struct reader *reader, const char *field, const char *format, ...)
{
    if (!reader_ok(reader))
        return;
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    reader->status =
        error_set_field(reader->err, STATUS_INVALID, field, "message: %s at byte %td: %s", field,
                        reader->at - reader->begin, what);
}

enum status reader_finish(struct reader *reader)
{
    if (reader_ok(reader) && reader->at != reader->end)
        reader_fail(reader, "end", "%td bytes are left over", reader->end - reader->at);
    return reader->status;
}

static size_t bytes_left(const struct reader *reader)
{
    return (size_t)(reader->end - reader->at);
}

static const char *type_name(uint8_t head)
{
    static const char *const names[] = {
        "nil",        "a reserved byte", "a boolean",  "a boolean",  "a bin",      "a bin",
        "a bin",      "an ext",          "an ext",     "an ext",     "a float",    "a double",
        "an integer", "an integer",      "an integer", "an integer", "an integer", "an integer",
        "an integer", "an integer",      "an ext",     "an ext",     "an ext",     "an ext",
        "an ext",     "a string",        "a string",   "a string",   "an array",   "an array",
        "a map",      "a map",
    };
    if (head < 0x80 || head >= 0xE0)
        return "an integer";
    if (head < 0x90)
        return "a map";
    if (head < 0xA0)
        return "an array";
    return head < 0xC0 ? "a string" : names[head - 0xC0];
}

/** The head byte of the next value, or 0xC1 (which is never valid) and a failure. */
static uint8_t take_head(struct reader *reader, const char *field)
{
    if (!reader_ok(reader))
        return 0xC1;
    if (bytes_left(reader) < 1) {
        reader_fail(reader, field, "the frame ends here");
        return 0xC1;
    }
    return *reader->at++;
}

static void fail_type(struct reader *reader, const char *field, uint8_t head, const char *expected)
{
    if (!reader_ok(reader))
        return;
    reader->at--;
    reader_fail(reader, field, "found %s, expected %s", type_name(head), expected);
}

/** A big-endian number of `size` bytes. */
static uint64_t take_number(struct reader *reader, const char *field, size_t size)
{
    if (!reader_ok(reader))
        return 0;
    if (bytes_left(reader) < size) {
        reader_fail(reader, field, "the frame ends within a number of %zu bytes", size);
        return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value = value << 8 | reader->at[i];
    reader->at += size;
    return value;
}

/** Any integer: its 64 bits, and whether they are those of a negative number. */
static uint64_t take_integer(struct reader *reader, const char *field, bool *negative)
{
    uint8_t head = take_head(reader, field);
    uint64_t value = 0;
    *negative = false;
    if (head < 0x80)
        return head;
    if (head >= 0xE0) {
        *negative = true;
        return (uint64_t)(int64_t)(int8_t)head;
    }
    if (head >= 0xCC && head <= 0xCF)
        return take_number(reader, field, (size_t)1 << (head - 0xCC));
    switch (head) {
    case 0xD0:
        value = (uint64_t)(int64_t)(int8_t)take_number(reader, field, 1);
        break;
    case 0xD1:
        value = (uint64_t)(int64_t)(int16_t)take_number(reader, field, 2);
        break;
    case 0xD2:
        value = (uint64_t)(int64_t)(int32_t)take_number(reader, field, 4);
        break;
    case 0xD3:
        value = take_number(reader, field, 8);
        break;
    default:
        fail_type(reader, field, head, "an integer");
        return 0;
    }
    *negative = (int64_t)value < 0;
    return value;
}

int64_t reader_int(struct reader *reader, const char *field, int64_t min, int64_t max)
{
    bool negative;
    uint64_t bits = take_integer(reader, field, &negative);
    if (!reader_ok(reader))
        return 0;
    if (!negative && bits > INT64_MAX) {
        reader_fail(reader, field, "%" PRIu64 " is not within [%" PRId64 ", %" PRId64 "]", bits,
                    min, max);
        return 0;
    }
    int64_t value = (int64_t)bits;
    if (value < min || value > max) {
        reader_fail(reader, field, "%" PRId64 " is not within [%" PRId64 ", %" PRId64 "]", value,
                    min, max);
        return 0;
    }
    return value;
}

int32_t reader_i32(struct reader *reader, const char *field, int32_t min, int32_t max)
{
    return (int32_t)reader_int(reader, field, min, max);
}

uint64_t reader_u64(struct reader *reader, const char *field)
{
    bool negative;
    uint64_t bits = take_integer(reader, field, &negative);
    if (reader_ok(reader) && negative) {
        reader_fail(reader, field, "%" PRId64 " is negative", (int64_t)bits);
        return 0;
    }
    return bits;
}

bool reader_bool(struct reader *reader, const char *field)
{
    uint8_t head = take_head(reader, field);
    if (head != 0xC2 && head != 0xC3)
        fail_type(reader, field, head, "a boolean");
    return head == 0xC3;
}

/** False for a NaN, too. */
static bool float_within(float value, float min, float max)
{
    return value >= min && value <= max;
}

float reader_float(struct reader *reader, const char *field, float min, float max)
{
    uint8_t head = take_head(reader, field);
    float value = 0;
    if (head == 0xCA) {
        uint32_t bits = (uint32_t)take_number(reader, field, sizeof(bits));
        memcpy(&value, &bits, sizeof(value));
    } else {
        fail_type(reader, field, head, "a float");
    }
    if (!reader_ok(reader))
        return 0;
    if (!float_within(value, min, max)) {
        reader_fail(reader, field, "%g is not within [%g, %g]", (double)value, (double)min,
                    (double)max);
        return 0;
    }
    return value;
}

struct str reader_bin(struct reader *reader, const char *field, size_t max_bytes)
{
    uint8_t head = take_head(reader, field);
    if (head < 0xC4 || head > 0xC6) {
        fail_type(reader, field, head, "a bin");
        return (struct str){0};
    }
    size_t len = take_number(reader, field, (size_t)1 << (head - 0xC4));
    if (!reader_ok(reader))
        return (struct str){0};
    if (len > bytes_left(reader)) {
        reader_fail(reader, field, "a bin of %zu bytes where %zu are left", len,
                    bytes_left(reader));
        return (struct str){0};
    }
    if (len > max_bytes) {
        reader_fail(reader, field, "a bin of %zu bytes, at most %zu are allowed", len, max_bytes);
        return (struct str){0};
    }
    struct str bytes = {(const char *)reader->at, len};
    reader->at += len;
    return bytes;
}

int32_t reader_array(struct reader *reader, const char *field, int32_t min, int32_t max,
                     size_t element_bytes)
{
    uint8_t head = take_head(reader, field);
    uint64_t len = 0;
    if (head >= 0x90 && head <= 0x9F)
        len = head & 0x0F;
    else if (head == 0xDC || head == 0xDD)
        len = take_number(reader, field, head == 0xDC ? 2 : 4);
    else
        fail_type(reader, field, head, "an array");
    if (!reader_ok(reader))
        return 0;
    if (len < (uint64_t)min || len > (uint64_t)max) {
        reader_fail(reader, field, "an array of %" PRIu64 ", expected %d to %d", len, min, max);
        return 0;
    }
    if (len > bytes_left(reader) / element_bytes) {
        reader_fail(reader, field, "an array of %" PRIu64 " does not fit in the %zu bytes left",
                    len, bytes_left(reader));
        return 0;
    }
    return (int32_t)len;
}

bool reader_take_nil(struct reader *reader)
{
    if (!reader_ok(reader) || bytes_left(reader) < 1 || *reader->at != 0xC0)
        return false;
    reader->at++;
    return true;
}

/** A bin of whole elements, copied to where they are aligned. */
static void *take_elements(struct reader *reader, const char *field, int32_t max, size_t size,
                           struct arena *arena, int32_t *num)
{
    *num = 0;
    struct str bytes = reader_bin(reader, field, (size_t)max * size);
    if (bytes.len % size != 0)
        reader_fail(reader, field, "%zu bytes are no whole number of elements of %zu", bytes.len,
                    size);
    if (!reader_ok(reader) || bytes.len == 0)
        return NULL;
    char *copy = arena_alloc(arena, bytes.len);
    memcpy(copy, bytes.ptr, bytes.len);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (size_t i = 0; i < bytes.len; i += size) {
        for (size_t j = 0; j < size; j++)
            copy[i + j] = bytes.ptr[i + size - 1 - j];
    }
#endif
    *num = (int32_t)(bytes.len / size);
    return copy;
}

const int32_t *reader_token_ids(struct reader *reader, const char *field, int32_t max,
                                struct arena *arena, int32_t *num)
{
    const int32_t *ids = take_elements(reader, field, max, sizeof(*ids), arena, num);
    int32_t all = 0; // its sign tells whether any id is negative, without a branch per id
    for (int32_t i = 0; i < *num; i++)
        all |= ids[i];
    if (all < 0)
        reader_fail(reader, field, "a token id is negative");
    return ids;
}

const uint32_t *reader_u32s(struct reader *reader, const char *field, int32_t max,
                            struct arena *arena, int32_t *num)
{
    return take_elements(reader, field, max, sizeof(uint32_t), arena, num);
}

const uint64_t *reader_u64s(struct reader *reader, const char *field, int32_t max,
                            struct arena *arena, int32_t *num)
{
    return take_elements(reader, field, max, sizeof(uint64_t), arena, num);
}

const float *reader_floats(struct reader *reader, const char *field, int32_t max, float min_value,
                           float max_value, struct arena *arena, int32_t *num)
{
    const float *values = take_elements(reader, field, max, sizeof(*values), arena, num);
    for (int32_t i = 0; i < *num; i++) {
        if (!float_within(values[i], min_value, max_value)) {
            reader_fail(reader, field, "element %d: %g is not within [%g, %g]", i,
                        (double)values[i], (double)min_value, (double)max_value);
            break;
        }
    }
    return values;
}
