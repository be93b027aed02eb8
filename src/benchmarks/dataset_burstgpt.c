// BurstGPT: lengths of real requests, a table with a line for each. Prompts are made up; they have
// the lengths of requests to GPT-4 that were answered, drawn at random.
#include <stdlib.h>
#include <string.h>

#include "base/mapped_file.h"
#include "base/memory.h"
#include "benchmarks/dataset_parts.h"

enum { MAX_LEN = 16777216, MAX_COLUMNS = 64 };

enum column { COLUMN_MODEL, COLUMN_REQUEST, COLUMN_RESPONSE, NUM_COLUMNS };

static const char *const column_names[NUM_COLUMNS] = {"Model", "Request tokens", "Response tokens"};

struct lengths {
    int32_t input_len, output_len;
};

struct table {
    int at[NUM_COLUMNS]; // which column of a line
    struct lengths *rows;
    size_t len, capacity;
};

/** The line's columns that are wanted; quotes around one are left out. False: it has too few. */
static bool split_line(const struct table *table, struct str line, struct str *values)
{
    int num_found = 0;
    for (int at = 0; at < MAX_COLUMNS && line.ptr; at++) {
        bool is_last = !memchr(line.ptr, ',', line.len);
        struct str value = str_trim(str_split(&line, ','));
        if (value.len >= 2 && value.ptr[0] == '"' && value.ptr[value.len - 1] == '"')
            value = str_slice(value, 1, value.len - 1);
        for (int c = 0; c < NUM_COLUMNS; c++) {
            if (table->at[c] != at)
                continue;
            values[c] = value;
            num_found++;
        }
        if (is_last)
            break;
    }
    return num_found == NUM_COLUMNS;
}

static enum status read_header(struct table *table, struct str line, struct error *err)
{
    for (int c = 0; c < NUM_COLUMNS; c++) {
        struct str rest = line;
        table->at[c] = -1;
        for (int at = 0; at < MAX_COLUMNS && rest.len > 0 && table->at[c] < 0; at++) {
            if (str_eq_c(str_trim(str_split(&rest, ',')), column_names[c]))
                table->at[c] = at;
        }
        if (table->at[c] < 0)
            return error_set(err, STATUS_INVALID, "line 1: expected a column \"%s\"",
                             column_names[c]);
    }
    return STATUS_OK;
}

/** A whole number of at most MAX_LEN, also written as "12.0". */
static bool read_len(struct str text, int32_t *out)
{
    char digits[24], *end;
    if (text.len == 0 || text.len >= sizeof(digits))
        return false;
    snprintf(digits, sizeof(digits), STR_FORMAT, STR_ARG(text));
    double value = strtod(digits, &end);
    if (*end != '\0' || !(value >= 0 && value <= MAX_LEN) || value != (double)(int32_t)value)
        return false;
    *out = (int32_t)value;
    return true;
}

static enum status read_line(struct table *table, struct str line, struct error *err)
{
    struct str values[NUM_COLUMNS] = {{0}};
    struct lengths row;
    if (!split_line(table, line, values))
        return error_set(err, STATUS_INVALID, "it has fewer columns than line 1");
    if (!str_eq_c(values[COLUMN_MODEL], "GPT-4"))
        return STATUS_OK;
    if (!read_len(values[COLUMN_REQUEST], &row.input_len) ||
        !read_len(values[COLUMN_RESPONSE], &row.output_len))
        return error_set(err, STATUS_INVALID,
                         "request and response tokens are '" STR_FORMAT "' and '" STR_FORMAT
                         "', expected whole numbers in [0, %d]",
                         STR_ARG(str_slice(values[COLUMN_REQUEST], 0, 40)),
                         STR_ARG(str_slice(values[COLUMN_RESPONSE], 0, 40)), MAX_LEN);
    if (row.input_len == 0 || row.output_len == 0) // it failed
        return STATUS_OK;
    if (table->len == table->capacity) {
        table->capacity = table->capacity ? 2 * table->capacity : 1024;
        table->rows = xrealloc(table->rows, table->capacity * sizeof(row));
    }
    table->rows[table->len++] = row;
    return STATUS_OK;
}

static enum status read_table(struct table *table, struct str file, struct error *err)
{
    struct str rest = file;
    TRY(read_header(table, str_trim(str_split(&rest, '\n')), err));
    for (int number = 2; rest.len > 0; number++) {
        struct str line = str_trim(str_split(&rest, '\n'));
        enum status status = line.len > 0 ? read_line(table, line, err) : STATUS_OK;
        if (status != STATUS_OK) {
            error_prefix(err, "line %d", number);
            return status;
        }
    }
    return STATUS_OK;
}

/** No line twice while there are others. */
static void add_prompts(struct maker *maker, struct table *table)
{
    bool goes_on = table->len > 0;
    for (size_t left = table->len; goes_on && left > 0; left--) {
        size_t at = (size_t)dice_below(&maker->dice, (int64_t)left);
        struct lengths row = table->rows[at];
        table->rows[at] = table->rows[left - 1];
        struct arena_mark mark = arena_mark(&maker->scratch);
        int32_t *ids = arena_array(&maker->scratch, int32_t, row.input_len);
        int64_t offset = dice_below(&maker->dice, maker->pool_len);
        for (int32_t i = 0; i < row.input_len; i++)
            ids[i] = maker_id(maker, offset + i);
        goes_on = maker_add_ids(maker, ids, row.input_len, row.output_len, 0);
        arena_release(&maker->scratch, mark);
    }
}

enum status make_burstgpt(struct maker *maker, struct error *err)
{
    struct mapped_file file;
    struct table table = {0};
    TRY(mapped_file_open(&file, maker->options->dataset_path, err));
    enum status status = read_table(&table, mapped_file_str(&file), err);
    mapped_file_close(&file);
    if (status == STATUS_OK)
        add_prompts(maker, &table);
    else
        error_prefix(err, "%s", maker->options->dataset_path);
    free(table.rows);
    return status;
}
