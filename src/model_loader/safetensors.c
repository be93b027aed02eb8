// One safetensors file: see safetensors.h. The order of checks: lengths, JSON, each tensor alone,
// then all tensors against the data section.
#include "model_loader/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json_reader.h"
#include "base/memory.h"

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100 * 1000 * 1000 };

static const struct {
    const char *name;
    enum dtype dtype;
} DTYPES[] = {
    {"F32", DTYPE_F32},         {"F16", DTYPE_F16},         {"BF16", DTYPE_BF16},
    {"F8_E4M3", DTYPE_F8_E4M3}, {"F8_E5M2", DTYPE_F8_E5M2}, {"F8_E8M0", DTYPE_F8_E8M0},
    {"I8", DTYPE_I8},           {"U8", DTYPE_U8},           {"BOOL", DTYPE_BOOL},
    {"I16", DTYPE_I16},         {"U16", DTYPE_U16},         {"I32", DTYPE_I32},
    {"U32", DTYPE_U32},         {"I64", DTYPE_I64},         {"U64", DTYPE_U64},
    {"F64", DTYPE_F64},
};

// Of the format, but smaller than a byte or complex: nothing here can hold them.
static const char *const KNOWN_ELSEWHERE[] = {"F4", "F6_E2M3", "F6_E3M2", "C64"};

const char *safetensors_dtype_name(enum dtype dtype)
{
    for (size_t i = 0; i < ARRAY_LEN(DTYPES); i++) {
        if (DTYPES[i].dtype == dtype)
            return DTYPES[i].name;
    }
    return "?";
}

const char *safetensor_describe(const struct safetensor *tensor, struct arena *arena)
{
    struct buf text = {0};
    buf_printf(&text, "%s [", safetensors_dtype_name(tensor->dtype));
    for (int32_t i = 0; i < tensor->ndim; i++)
        buf_printf(&text, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
    buf_append_char(&text, ']');
    const char *copy = arena_strdup(arena, buf_str(&text));
    buf_deinit(&text);
    return copy;
}

static enum status parse_dtype(struct str text, enum dtype *out, struct error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(DTYPES); i++) {
        if (str_eq_c(text, DTYPES[i].name)) {
            *out = DTYPES[i].dtype;
            return STATUS_OK;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(KNOWN_ELSEWHERE); i++) {
        if (str_eq_c(text, KNOWN_ELSEWHERE[i]))
            return error_set(err, STATUS_UNSUPPORTED, "dtype %s is not supported",
                             KNOWN_ELSEWHERE[i]);
    }
    return error_set(err, STATUS_INVALID, "unknown dtype \"" STR_FORMAT "\"",
                     STR_ARG(str_slice(text, 0, 32)));
}

static enum status read_shape(struct safetensor *tensor, struct json_reader *json,
                              struct error *err)
{
    TRY(json_reader_expect(json, JSON_TOKEN_ARRAY_BEGIN, err));
    while (json_reader_next_element(json)) {
        if (tensor->ndim == SAFETENSORS_MAX_DIMS)
            return error_set(err, STATUS_UNSUPPORTED, "more than %d dimensions",
                             SAFETENSORS_MAX_DIMS);
        int64_t *dim = &tensor->shape[tensor->ndim++];
        TRY(json_reader_read_int(json, dim, err));
        if (*dim < 0)
            return error_set(err, STATUS_INVALID, "negative dimension %" PRId64, *dim);
    }
    return json_reader_status(json, err);
}

/** The range of a tensor's bytes in the data section. */
struct byte_range {
    int64_t begin, end;
};

static enum status read_offsets(struct byte_range *range, struct json_reader *json,
                                struct error *err)
{
    int64_t values[2];
    size_t count = 0;
    TRY(json_reader_expect(json, JSON_TOKEN_ARRAY_BEGIN, err));
    while (json_reader_next_element(json)) {
        if (count == 2)
            return error_set(err, STATUS_INVALID, "data_offsets has more than two numbers");
        TRY(json_reader_read_int(json, &values[count++], err));
    }
    TRY(json_reader_status(json, err));
    if (count != 2)
        return error_set(err, STATUS_INVALID, "data_offsets has %zu numbers instead of two", count);
    if (values[0] < 0 || values[0] > values[1])
        return error_set(err, STATUS_INVALID,
                         "data_offsets [%" PRId64 ", %" PRId64 "] are not a range", values[0],
                         values[1]);
    *range = (struct byte_range){values[0], values[1]};
    return STATUS_OK;
}

static enum status check_range(struct safetensor *tensor, struct byte_range range,
                               struct str data_section, struct error *err)
{
    size_t size = dtype_size(tensor->dtype);
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (!size_mul(&size, size, (size_t)tensor->shape[i]))
            return error_set(err, STATUS_INVALID, "the shape's size overflows");
    }
    size_t range_size = (size_t)(range.end - range.begin);
    if (size != range_size)
        return error_set(err, STATUS_INVALID,
                         "dtype and shape need %zu bytes, data_offsets [%" PRId64 ", %" PRId64
                         "] hold %zu",
                         size, range.begin, range.end, range_size);
    if ((size_t)range.end > data_section.len)
        return error_set(err, STATUS_INVALID,
                         "its bytes end at %" PRId64 " of a data section of %zu bytes (expected a "
                         "file of at least %" PRId64 " more bytes; was it cut short?)",
                         range.end, data_section.len, range.end - (int64_t)data_section.len);
    tensor->size_bytes = size;
    tensor->data = data_section.ptr ? data_section.ptr + range.begin : NULL;
    return STATUS_OK;
}

static enum status read_tensor(struct safetensor *tensor, struct json_reader *json,
                               struct str data_section, struct error *err)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    static const char *const FIELDS[] = {"dtype", "shape", "data_offsets"};
    unsigned seen = 0;
    struct byte_range range = {0, 0};
    TRY(json_reader_expect(json, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(json, &key);) {
        unsigned field = 0;
        for (size_t i = 0; i < ARRAY_LEN(FIELDS); i++) {
            if (str_eq_c(key, FIELDS[i]))
                field = 1u << i;
        }
        if (seen & field)
            return error_set(err, STATUS_INVALID, "\"" STR_FORMAT "\" stands there twice",
                             STR_ARG(key));
        seen |= field;
        struct str text;
        if (field == DTYPE) {
            TRY(json_reader_read_string(json, &text, err));
            TRY(parse_dtype(text, &tensor->dtype, err));
        } else if (field == SHAPE) {
            TRY(read_shape(tensor, json, err));
        } else if (field == OFFSETS) {
            TRY(read_offsets(&range, json, err));
        } else {
            json_reader_skip_value(json);
        }
    }
    TRY(json_reader_status(json, err));
    for (size_t i = 0; i < ARRAY_LEN(FIELDS); i++) {
        if (!(seen & 1u << i))
            return error_set(err, STATUS_INVALID, "\"%s\" is missing", FIELDS[i]);
    }
    return check_range(tensor, range, data_section, err);
}

static enum status read_metadata(struct json_reader *json, struct error *err)
{
    TRY(json_reader_expect(json, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key, value; json_reader_next_key(json, &key);)
        TRY(json_reader_read_string(json, &value, err));
    return json_reader_status(json, err);
}

static struct safetensor *add_tensor(struct safetensors *file, struct str name, size_t *capacity)
{
    if (file->num_tensors == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 64;
        file->tensors = xrealloc(file->tensors, *capacity * sizeof(*file->tensors));
    }
    struct safetensor *tensor = &file->tensors[file->num_tensors];
    *tensor = (struct safetensor){.name = name, .file = file->path};
    if (!hashmap_set(&file->by_name, name, (int64_t)file->num_tensors))
        return NULL;
    file->num_tensors++;
    return tensor;
}

static enum status read_header(struct safetensors *file, struct str header, struct str data_section,
                               struct error *err)
{
    struct json_reader json;
    json_reader_init(&json, header, &file->arena);
    TRY(json_reader_expect(&json, JSON_TOKEN_OBJECT_BEGIN, err));
    bool has_metadata = false;
    size_t capacity = 0;
    for (struct str name; json_reader_next_key(&json, &name);) {
        enum status status;
        if (str_eq_c(name, "__metadata__")) {
            status = has_metadata ? error_set(err, STATUS_INVALID, "stands there twice")
                                  : read_metadata(&json, err);
            has_metadata = true;
        } else {
            struct safetensor *tensor = add_tensor(file, name, &capacity);
            status = tensor ? read_tensor(tensor, &json, data_section, err)
                            : error_set(err, STATUS_INVALID, "two tensors have this name");
        }
        if (status != STATUS_OK) {
            error_prefix(err, STR_FORMAT, STR_ARG(str_slice(name, 0, 200)));
            return status;
        }
    }
    return json_reader_expect(&json, JSON_TOKEN_END, err);
}

static int compare_position(const void *a, const void *b)
{
    const struct safetensor *const *x = a, *const *y = b;
    if ((*x)->data != (*y)->data)
        return (const char *)(*x)->data < (const char *)(*y)->data ? -1 : 1;
    // An empty tensor may stand where another one begins: it comes first.
    return ((*x)->size_bytes > (*y)->size_bytes) - ((*x)->size_bytes < (*y)->size_bytes);
}

/** Without a hole and without an overlap, from the first byte of the data section to the last. */
static enum status check_coverage(const struct safetensors *file, struct str data_section,
                                  struct error *err)
{
    const struct safetensor **sorted = xmalloc((file->num_tensors + 1) * sizeof(*sorted));
    for (size_t i = 0; i < file->num_tensors; i++)
        sorted[i] = &file->tensors[i];
    qsort(sorted, file->num_tensors, sizeof(*sorted), compare_position);
    enum status status = STATUS_OK;
    size_t end = 0;
    for (size_t i = 0; i < file->num_tensors && status == STATUS_OK; i++) {
        const struct safetensor *t = sorted[i];
        size_t begin = t->data ? (size_t)((const char *)t->data - data_section.ptr) : 0;
        struct str name = str_slice(t->name, 0, 200);
        if (begin < end)
            status = error_set(
                err, STATUS_INVALID,
                STR_FORMAT ": begins at byte %zu, within " STR_FORMAT ", which ends at %zu",
                STR_ARG(name), begin, STR_ARG(str_slice(sorted[i - 1]->name, 0, 200)), end);
        else if (begin > end)
            status = error_set(err, STATUS_INVALID,
                               STR_FORMAT ": begins at byte %zu, but the tensor before it ends at "
                                          "%zu: a hole",
                               STR_ARG(name), begin, end);
        end = begin + t->size_bytes;
    }
    free(sorted);
    if (status == STATUS_OK && end != data_section.len)
        status = error_set(err, STATUS_INVALID,
                           "the tensors end at byte %zu of a data section of %zu bytes", end,
                           data_section.len);
    return status;
}

static uint64_t load_u64_le(const char *bytes)
{
    uint64_t value = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        value = value << 8 | (unsigned char)bytes[i];
    return value;
}

static enum status parse(struct safetensors *file, struct str bytes, struct error *err)
{
    if (bytes.len < LENGTH_BYTES)
        return error_set(err, STATUS_INVALID, "%zu bytes are too few for a safetensors file",
                         bytes.len);
    uint64_t header_len = load_u64_le(bytes.ptr);
    if (header_len > bytes.len - LENGTH_BYTES)
        return error_set(err, STATUS_INVALID,
                         "says that its header has %" PRIu64 " bytes; the file has %zu", header_len,
                         bytes.len);
    if (header_len > MAX_HEADER_BYTES)
        return error_set(err, STATUS_TOO_LARGE,
                         "its header has %" PRIu64 " bytes; at most %d are read", header_len,
                         MAX_HEADER_BYTES);
    struct str header = str_slice(bytes, LENGTH_BYTES, LENGTH_BYTES + (size_t)header_len);
    struct str data_section = str_slice(bytes, LENGTH_BYTES + (size_t)header_len, bytes.len);
    enum status status = read_header(file, header, data_section, err);
    return status == STATUS_OK ? check_coverage(file, data_section, err) : status;
}

enum status safetensors_parse(struct safetensors *file, struct str bytes, const char *name,
                              struct error *err)
{
    *file = (struct safetensors){0};
    file->path = arena_strdup(&file->arena, str_from(name));
    enum status status = parse(file, bytes, err);
    if (status != STATUS_OK) {
        error_prefix(err, "%s", name);
        safetensors_close(file);
    }
    return status;
}

enum status safetensors_open(struct safetensors *file, const char *path, struct error *err)
{
    *file = (struct safetensors){0};
    struct mapped_file map;
    TRY(mapped_file_open(&map, path, err));
    enum status status = safetensors_parse(file, mapped_file_str(&map), path, err);
    if (status == STATUS_OK)
        file->map = map;
    else
        mapped_file_close(&map);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    if (!file)
        return;
    mapped_file_close(&file->map);
    free(file->tensors);
    hashmap_deinit(&file->by_name);
    arena_deinit(&file->arena);
    *file = (struct safetensors){0};
}

const struct safetensor *safetensors_find(const struct safetensors *file, struct str name)
{
    int64_t index;
    return hashmap_get(&file->by_name, name, &index) ? &file->tensors[index] : NULL;
}
