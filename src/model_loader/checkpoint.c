// A checkpoint directory as named tensors: see checkpoint.h.
#include "model_loader/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_reader.h"
#include "base/mapped_file.h"
#include "base/memory.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

enum { MAX_FILES = 65536 };

/** One line of the index: where a tensor is. */
struct index_entry {
    struct str name;
    int64_t file;
};

struct index {
    struct index_entry *entries;
    size_t num_entries;
    const char **files; // in `arena`
    size_t num_files;
    struct hashmap file_numbers;
    struct arena arena;
};

static void index_deinit(struct index *index)
{
    free(index->entries);
    free(index->files);
    hashmap_deinit(&index->file_numbers);
    arena_deinit(&index->arena);
}

/** A file of the directory itself or below it: neither absolute nor through "..". */
static bool stays_inside(struct str path)
{
    if (path.len == 0 || path.ptr[0] == '/' || memchr(path.ptr, '\0', path.len))
        return false;
    for (struct str rest = path; rest.len > 0;) {
        if (str_eq_c(str_split(&rest, '/'), ".."))
            return false;
    }
    return true;
}

static enum status file_number(struct index *index, struct str file, int64_t *out,
                               struct error *err)
{
    if (hashmap_get(&index->file_numbers, file, out))
        return STATUS_OK;
    if (!stays_inside(file))
        return error_set(err, STATUS_INVALID,
                         "\"" STR_FORMAT "\" is not a file of the model's directory",
                         STR_ARG(str_slice(file, 0, 200)));
    if (index->num_files == MAX_FILES)
        return error_set(err, STATUS_TOO_LARGE, "more than %d files", MAX_FILES);
    *out = (int64_t)index->num_files;
    index->files = xrealloc(index->files, (index->num_files + 1) * sizeof(*index->files));
    char *copy = arena_strdup(&index->arena, file);
    index->files[index->num_files++] = copy;
    (void)hashmap_set(&index->file_numbers, (struct str){copy, file.len}, *out);
    return STATUS_OK;
}

static enum status read_weight_map(struct index *index, struct json_reader *json, struct error *err)
{
    size_t capacity = 0;
    struct str name, file;
    TRY(json_reader_expect(json, JSON_TOKEN_OBJECT_BEGIN, err));
    while (json_reader_next_key(json, &name)) {
        int64_t number = 0;
        enum status status = json_reader_read_string(json, &file, err);
        if (status == STATUS_OK)
            status = file_number(index, file, &number, err);
        if (status != STATUS_OK) {
            error_prefix(err, STR_FORMAT, STR_ARG(str_slice(name, 0, 200)));
            return status;
        }
        if (index->num_entries == capacity) {
            capacity = capacity ? capacity * 2 : 256;
            index->entries = xrealloc(index->entries, capacity * sizeof(*index->entries));
        }
        // The JSON text is unmapped before the names are used for the last time.
        index->entries[index->num_entries++] =
            (struct index_entry){arena_str(&index->arena, name), number};
    }
    return json_reader_status(json, err);
}

static enum status read_index(struct index *index, struct str text, struct error *err)
{
    struct json_reader json;
    json_reader_init(&json, text, &index->arena);
    TRY(json_reader_expect(&json, JSON_TOKEN_OBJECT_BEGIN, err));
    bool has_map = false;
    for (struct str key; json_reader_next_key(&json, &key);) {
        if (!str_eq_c(key, "weight_map")) {
            json_reader_skip_value(&json);
            continue;
        }
        if (has_map)
            return error_set(err, STATUS_INVALID, "\"weight_map\" stands there twice");
        has_map = true;
        TRY(read_weight_map(index, &json, err));
    }
    TRY(json_reader_expect(&json, JSON_TOKEN_END, err));
    if (!has_map)
        return error_set(err, STATUS_INVALID, "\"weight_map\" is missing");
    return STATUS_OK;
}

static enum status add_tensor(struct checkpoint *c, const struct safetensor *tensor,
                              struct error *err)
{
    if (!hashmap_set(&c->by_name, tensor->name, (int64_t)c->num_tensors))
        return error_set(err, STATUS_INVALID, STR_FORMAT ": two tensors have this name",
                         STR_ARG(tensor->name));
    c->tensors[c->num_tensors++] = tensor;
    return STATUS_OK;
}

static enum status open_files(struct checkpoint *c, const struct index *index, struct error *err)
{
    c->files = xcalloc(index->num_files + 1, sizeof(*c->files));
    for (; c->num_files < index->num_files; c->num_files++) {
        const char *path = arena_printf(&c->arena, "%s/%s", c->dir, index->files[c->num_files]);
        enum status status = safetensors_open(&c->files[c->num_files], path, err);
        if (status == STATUS_NOT_FOUND) {
            for (size_t i = 0; i < index->num_entries; i++) {
                if (index->entries[i].file == (int64_t)c->num_files)
                    return error_set(err, status,
                                     "%s: no such file; " INDEX_FILE " places " STR_FORMAT
                                     " and maybe others there",
                                     path, STR_ARG(str_slice(index->entries[i].name, 0, 200)));
            }
        }
        TRY(status);
    }
    return STATUS_OK;
}

static enum status find_tensors(struct checkpoint *c, const struct index *index, struct error *err)
{
    c->tensors = xcalloc(index->num_entries + 1, sizeof(const struct safetensor *));
    hashmap_reserve(&c->by_name, index->num_entries);
    for (size_t i = 0; i < index->num_entries; i++) {
        const struct index_entry *entry = &index->entries[i];
        const struct safetensors *file = &c->files[entry->file];
        const struct safetensor *tensor = safetensors_find(file, entry->name);
        if (!tensor)
            return error_set(err, STATUS_NOT_FOUND,
                             "%s: has no tensor " STR_FORMAT ", which " INDEX_FILE " places there",
                             file->path, STR_ARG(str_slice(entry->name, 0, 200)));
        TRY(add_tensor(c, tensor, err));
    }
    return STATUS_OK;
}

static enum status open_indexed(struct checkpoint *c, const struct mapped_file *map,
                                const char *path, struct error *err)
{
    struct index index = {0};
    enum status status = read_index(&index, mapped_file_str(map), err);
    if (status != STATUS_OK)
        error_prefix(err, "%s", path);
    if (status == STATUS_OK)
        status = open_files(c, &index, err);
    if (status == STATUS_OK)
        status = find_tensors(c, &index, err);
    index_deinit(&index);
    return status;
}

static enum status open_single(struct checkpoint *c, struct error *err)
{
    const char *path = arena_printf(&c->arena, "%s/" SINGLE_FILE, c->dir);
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return error_set(err, STATUS_NOT_FOUND, "%s: holds neither " SINGLE_FILE " nor " INDEX_FILE,
                         c->dir);
    c->files = xcalloc(1, sizeof(*c->files));
    TRY(safetensors_open(&c->files[0], path, err));
    c->num_files = 1;
    c->tensors = xcalloc(c->files[0].num_tensors + 1, sizeof(const struct safetensor *));
    hashmap_reserve(&c->by_name, c->files[0].num_tensors);
    for (size_t i = 0; i < c->files[0].num_tensors; i++)
        TRY(add_tensor(c, &c->files[0].tensors[i], err));
    return STATUS_OK;
}

enum status checkpoint_open(struct checkpoint *checkpoint, const char *dir, struct error *err)
{
    *checkpoint = (struct checkpoint){0};
    checkpoint->dir = arena_strdup(&checkpoint->arena, str_from(dir));
    const char *path = arena_printf(&checkpoint->arena, "%s/" INDEX_FILE, dir);
    struct mapped_file map = {0};
    enum status status;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        status = open_single(checkpoint, err);
    } else {
        status = mapped_file_open(&map, path, err);
        if (status == STATUS_OK)
            status = open_indexed(checkpoint, &map, path, err);
        mapped_file_close(&map);
    }
    if (status != STATUS_OK)
        checkpoint_close(checkpoint);
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->num_files; i++)
        safetensors_close(&checkpoint->files[i]);
    free(checkpoint->files);
    free(checkpoint->tensors);
    hashmap_deinit(&checkpoint->by_name);
    arena_deinit(&checkpoint->arena);
    *checkpoint = (struct checkpoint){0};
}

int64_t checkpoint_find(const struct checkpoint *checkpoint, struct str name)
{
    int64_t index;
    return hashmap_get(&checkpoint->by_name, name, &index) ? index : -1;
}
