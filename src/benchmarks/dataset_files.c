// Prompts from files: ShareGPT conversations, JSON lines, lines of verse, recorded traffic.
#include <math.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/mapped_file.h"
#include "base/memory.h"
#include "benchmarks/dataset_parts.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer_config.h"

enum {
    MIN_LEN = 4, // shorter prompts and answers of ShareGPT are left out, and longer ones:
    MAX_PROMPT_LEN = 1024,
    MAX_TOTAL_LEN = 2048,
    MAX_LEN = 16777216,
    TRACE_BLOCK_LEN = 512, // tokens that one hash id stands for
};

/** A prompt of a file and what answered it. */
struct pair {
    struct str prompt, answer;
    int64_t output_len; // -1: not said
};

struct pairs {
    struct pair *items;
    size_t len, capacity;
};

static void pairs_push(struct pairs *pairs, struct pair pair)
{
    if (pairs->len == pairs->capacity) {
        pairs->capacity = pairs->capacity ? 2 * pairs->capacity : 1024;
        pairs->items = xrealloc(pairs->items, pairs->capacity * sizeof(pair));
    }
    pairs->items[pairs->len++] = pair;
}

static void shuffle(struct maker *maker, struct pairs *pairs)
{
    if (maker->options->disable_shuffle)
        return;
    for (size_t i = pairs->len; i > 1; i--) {
        size_t other = (size_t)dice_below(&maker->dice, (int64_t)i);
        struct pair pair = pairs->items[i - 1];
        pairs->items[i - 1] = pairs->items[other];
        pairs->items[other] = pair;
    }
}

static void use_prefix(const struct maker *maker, struct error *err)
{
    error_prefix(err, "%s", maker->options->dataset_path);
}

/** Calls `read` with the whole file, which stays mapped for `use`. */
typedef enum status use_fn(struct maker *maker, struct str file, struct pairs *pairs,
                           struct error *err);

static enum status with_file(struct maker *maker, use_fn *use, struct error *err)
{
    struct mapped_file file;
    TRY(mapped_file_open(&file, maker->options->dataset_path, err));
    struct pairs pairs = {0};
    enum status status = use(maker, mapped_file_str(&file), &pairs, err);
    free(pairs.items);
    mapped_file_close(&file);
    if (status != STATUS_OK)
        use_prefix(maker, err);
    return status;
}

// ---- ShareGPT ------------------------------------------------------------------------------

static enum status read_turn(struct json_reader *reader, struct str *text, struct error *err)
{
    TRY(json_reader_expect(reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(reader, &key);) {
        if (str_eq_c(key, "value") && json_reader_peek(reader) == JSON_TOKEN_STRING)
            TRY(json_reader_read_string(reader, text, err));
        else
            json_reader_skip_value(reader);
    }
    return json_reader_status(reader, err);
}

static enum status read_conversation(struct json_reader *reader, struct pairs *pairs,
                                     struct error *err)
{
    struct str turns[2] = {{0}};
    int num_turns = 0;
    TRY(json_reader_expect(reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(reader, &key);) {
        bool wanted = str_eq_c(key, "conversations") || str_eq_c(key, "conversation");
        if (!wanted || json_reader_peek(reader) != JSON_TOKEN_ARRAY_BEGIN) {
            json_reader_skip_value(reader);
            continue;
        }
        TRY(json_reader_expect(reader, JSON_TOKEN_ARRAY_BEGIN, err));
        while (json_reader_next_element(reader)) {
            if (num_turns < 2)
                TRY(read_turn(reader, &turns[num_turns++], err));
            else
                json_reader_skip_value(reader);
        }
    }
    TRY(json_reader_status(reader, err));
    if (num_turns == 2)
        pairs_push(pairs, (struct pair){turns[0], turns[1], -1});
    return STATUS_OK;
}

static enum status use_sharegpt(struct maker *maker, struct str file, struct pairs *pairs,
                                struct error *err)
{
    struct json_reader reader;
    json_reader_init(&reader, file, &maker->dataset->arena);
    TRY(json_reader_expect(&reader, JSON_TOKEN_ARRAY_BEGIN, err));
    while (json_reader_next_element(&reader))
        TRY(read_conversation(&reader, pairs, err));
    TRY(json_reader_status(&reader, err));
    shuffle(maker, pairs);
    int32_t fixed_len = maker->options->sharegpt_output_len;
    bool goes_on = true;
    for (size_t i = 0; i < pairs->len && goes_on; i++) {
        int32_t num_prompt = maker_count(maker, pairs->items[i].prompt);
        int32_t num_answer = fixed_len > 0 ? fixed_len : maker_count(maker, pairs->items[i].answer);
        if (num_prompt < MIN_LEN || num_prompt > MAX_PROMPT_LEN ||
            (fixed_len <= 0 && num_answer < MIN_LEN) || num_prompt + num_answer > MAX_TOTAL_LEN)
            continue;
        goes_on = maker_add_text(maker, pairs->items[i].prompt, num_answer);
    }
    return STATUS_OK;
}

enum status make_sharegpt(struct maker *maker, struct error *err)
{
    return with_file(maker, use_sharegpt, err);
}

// ---- JSON lines ----------------------------------------------------------------------------

static enum status read_line(struct maker *maker, struct str line, struct pair *pair,
                             struct error *err)
{
    struct json_reader reader;
    *pair = (struct pair){.output_len = -1};
    json_reader_init(&reader, line, &maker->dataset->arena);
    TRY(json_reader_expect(&reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(&reader, &key);) {
        if (str_eq_c(key, "prompt"))
            TRY(json_reader_read_string(&reader, &pair->prompt, err));
        else if (str_eq_c(key, "output_tokens"))
            TRY(json_reader_read_int(&reader, &pair->output_len, err));
        else
            json_reader_skip_value(&reader);
    }
    TRY(json_reader_status(&reader, err));
    TRY(json_reader_expect(&reader, JSON_TOKEN_END, err));
    if (!pair->prompt.ptr)
        return error_set(err, STATUS_INVALID, "expected the key \"prompt\"");
    bool needs_len = maker->options->custom_output_len < 0;
    if (needs_len && (pair->output_len < 1 || pair->output_len > MAX_LEN))
        return error_set(err, STATUS_INVALID,
                         "--custom-output-len -1 needs output_tokens in [1, %d] on every line",
                         MAX_LEN);
    return STATUS_OK;
}

/** What a prompt is wrapped with. */
struct wrapping {
    struct chat_template *chat_template; // NULL: nothing
    struct tokenizer_config config;
    json_t *kwargs;
};

static enum status wrapping_open(struct wrapping *wrapping, const struct maker *maker,
                                 struct error *err)
{
    const struct bench_options *o = maker->options;
    if (o->backend != BENCH_BACKEND_COMPLETIONS || o->skip_chat_template ||
        !maker->use->template_dir)
        return STATUS_OK;
    TRY(tokenizer_config_load(&wrapping->config, maker->use->template_dir, err));
    if (o->chat_template_kwargs) // an object, as its option says
        wrapping->kwargs = json_loads(o->chat_template_kwargs, 0, NULL);
    struct str source = tokenizer_config_template(&wrapping->config, STR("default"));
    return source.len > 0 ? chat_template_compile(&wrapping->chat_template, source, err)
                          : STATUS_OK;
}

/** Wraps the prompt as the only message of a chat. Without a template the text stays. */
static enum status render(struct maker *maker, const struct wrapping *wrapping, struct str *text,
                          struct error *err)
{
    if (!wrapping->chat_template)
        return STATUS_OK;
    json_t *messages = json_pack("[{s:s, s:s%}]", "role", "user", "content",
                                 text->ptr ? text->ptr : "", text->len);
    if (!messages)
        return error_set(err, STATUS_INVALID, "a prompt is not valid UTF-8");
    struct chat_template_inputs inputs = {.messages = messages,
                                          .kwargs = wrapping->kwargs,
                                          .special_tokens = wrapping->config.special_tokens,
                                          .add_generation_prompt = true};
    enum status status =
        chat_template_render(wrapping->chat_template, &inputs, &maker->scratch, text, err);
    json_decref(messages);
    return status;
}

static enum status add_custom(struct maker *maker, const struct pairs *pairs,
                              const struct wrapping *wrapping, struct error *err)
{
    bool goes_on = true;
    for (size_t i = 0; i < pairs->len && goes_on; i++) {
        struct str text = pairs->items[i].prompt;
        struct arena_mark mark = arena_mark(&maker->scratch);
        TRY(render(maker, wrapping, &text, err));
        int32_t len = maker->options->custom_output_len;
        goes_on = maker_add_text(maker, text, len > 0 ? len : (int32_t)pairs->items[i].output_len);
        arena_release(&maker->scratch, mark);
    }
    return STATUS_OK;
}

static enum status use_custom(struct maker *maker, struct str file, struct pairs *pairs,
                              struct error *err)
{
    struct str rest = file;
    for (int number = 1; rest.len > 0; number++) {
        struct str line = str_trim(str_split(&rest, '\n'));
        struct pair pair;
        if (line.len == 0)
            continue;
        enum status status = read_line(maker, line, &pair, err);
        if (status != STATUS_OK) {
            error_prefix(err, "line %d", number);
            return status;
        }
        pairs_push(pairs, pair);
    }
    shuffle(maker, pairs);
    struct wrapping wrapping = {0};
    enum status status = wrapping_open(&wrapping, maker, err);
    if (status == STATUS_OK)
        status = add_custom(maker, pairs, &wrapping, err);
    chat_template_destroy(wrapping.chat_template);
    tokenizer_config_deinit(&wrapping.config);
    json_decref(wrapping.kwargs);
    return status;
}

enum status make_custom(struct maker *maker, struct error *err)
{
    return with_file(maker, use_custom, err);
}

// ---- lines of verse ------------------------------------------------------------------------

/** Lines (from the first on, or any) until `num_tokens` are reached. */
static void append_lines(struct maker *maker, const struct pairs *lines, bool in_order,
                         int32_t num_tokens, struct buf *text)
{
    for (size_t i = 0; num_tokens > 0 && i < lines->len * 1000; i++) {
        size_t at =
            in_order ? i % lines->len : (size_t)dice_below(&maker->dice, (int64_t)lines->len);
        struct str line = lines->items[at].prompt;
        num_tokens -= max_i32(1, maker_count(maker, line) - maker->num_special) + 1;
        buf_append(text, line);
        buf_append_char(text, '\n');
    }
}

static enum status use_sonnet(struct maker *maker, struct str file, struct pairs *lines,
                              struct error *err)
{
    const struct bench_options *o = maker->options;
    for (struct str rest = file; rest.len > 0;) {
        struct str line = str_trim(str_split(&rest, '\n'));
        if (line.len > 0)
            pairs_push(lines, (struct pair){.prompt = line});
    }
    if (o->sonnet_prefix_len > o->sonnet_input_len)
        return error_set(err, STATUS_INVALID,
                         "--sonnet-prefix-len %d is more than "
                         "--sonnet-input-len %d",
                         o->sonnet_prefix_len, o->sonnet_input_len);
    static const char task[] = "Pick as many lines as you can from these poem lines:\n";
    struct buf text = {0};
    bool goes_on = lines->len > 0;
    while (goes_on) {
        buf_clear(&text);
        buf_append_c(&text, task);
        append_lines(maker, lines, true, o->sonnet_prefix_len, &text);
        int32_t left = o->sonnet_input_len - maker_count(maker, buf_str(&text));
        append_lines(maker, lines, false, left, &text);
        goes_on = maker_add_text(maker, buf_str(&text), o->sonnet_output_len);
    }
    buf_deinit(&text);
    return STATUS_OK;
}

enum status make_sonnet(struct maker *maker, struct error *err)
{
    return with_file(maker, use_sonnet, err);
}

// ---- recorded traffic ----------------------------------------------------------------------

struct trace_line {
    double timestamp_ms;
    int64_t input_len, output_len;
    int64_t hash_ids[MAX_LEN / TRACE_BLOCK_LEN];
    int32_t num_hash_ids;
};

static enum status read_number(struct json_reader *reader, double *out, struct error *err)
{
    enum json_token token = json_reader_next(reader);
    if (token != JSON_TOKEN_INTEGER && token != JSON_TOKEN_DOUBLE)
        return error_set(err, STATUS_INVALID, "expected a number, found %s",
                         json_token_name(token));
    *out = reader->number;
    return STATUS_OK;
}

static enum status read_trace_line(struct maker *maker, struct str text, struct trace_line *line,
                                   struct error *err)
{
    struct json_reader reader;
    line->timestamp_ms = -1;
    line->input_len = line->output_len = line->num_hash_ids = 0;
    json_reader_init(&reader, text, &maker->scratch);
    TRY(json_reader_expect(&reader, JSON_TOKEN_OBJECT_BEGIN, err));
    for (struct str key; json_reader_next_key(&reader, &key);) {
        if (str_eq_c(key, "timestamp")) {
            TRY(read_number(&reader, &line->timestamp_ms, err));
        } else if (str_eq_c(key, "input_length")) {
            TRY(json_reader_read_int(&reader, &line->input_len, err));
        } else if (str_eq_c(key, "output_length")) {
            TRY(json_reader_read_int(&reader, &line->output_len, err));
        } else if (str_eq_c(key, "hash_ids")) {
            TRY(json_reader_expect(&reader, JSON_TOKEN_ARRAY_BEGIN, err));
            while (json_reader_next_element(&reader)) {
                if (line->num_hash_ids == (int32_t)ARRAY_LEN(line->hash_ids))
                    return error_set(err, STATUS_INVALID, "more than %zu hash_ids",
                                     ARRAY_LEN(line->hash_ids));
                TRY(json_reader_read_int(&reader, &line->hash_ids[line->num_hash_ids++], err));
            }
        } else {
            json_reader_skip_value(&reader);
        }
    }
    TRY(json_reader_status(&reader, err));
    bool right = line->timestamp_ms >= 0 && line->input_len >= 1 && line->input_len <= MAX_LEN &&
                 line->output_len >= 1 && line->output_len <= MAX_LEN;
    if (!right)
        return error_set(err, STATUS_INVALID,
                         "expected timestamp >= 0, input_length and output_length in [1, %d]",
                         MAX_LEN);
    return STATUS_OK;
}

/** A hash id gives the same tokens wherever it stands; what no hash id covers is the line's own. */
static void fill_trace_ids(struct maker *maker, const struct trace_line *line, int32_t *ids)
{
    int32_t num = (int32_t)line->input_len;
    for (int32_t start = 0, block = 0; start < num; start += TRACE_BLOCK_LEN, block++) {
        uint64_t seed =
            block < line->num_hash_ids ? (uint64_t)line->hash_ids[block] : dice_u64(&maker->dice);
        struct dice dice = dice_make(seed ^ (uint64_t)maker->options->seed << 32);
        for (int32_t i = start; i < num && i < start + TRACE_BLOCK_LEN; i++)
            ids[i] = maker_id(maker, dice_below(&dice, maker->pool_len));
    }
}

static enum status use_timed_trace(struct maker *maker, struct str file, struct pairs *pairs,
                                   struct error *err)
{
    (void)pairs;
    struct trace_line *line = xcalloc(1, sizeof(*line));
    enum status status = STATUS_OK;
    double first_ms = -1, last_ms = 0;
    bool goes_on = true;
    struct str rest = file;
    for (int number = 1; rest.len > 0 && goes_on && status == STATUS_OK; number++) {
        struct str text = str_trim(str_split(&rest, '\n'));
        if (text.len == 0)
            continue;
        struct arena_mark mark = arena_mark(&maker->scratch);
        status = read_trace_line(maker, text, line, err);
        if (status == STATUS_OK && first_ms >= 0 && line->timestamp_ms < last_ms)
            status = error_set(err, STATUS_INVALID, "timestamp %g comes after %g",
                               line->timestamp_ms, last_ms);
        if (status != STATUS_OK) {
            error_prefix(err, "line %d", number);
            arena_release(&maker->scratch, mark);
            break;
        }
        first_ms = first_ms < 0 ? line->timestamp_ms : first_ms;
        last_ms = line->timestamp_ms;
        int32_t *ids = arena_array(&maker->scratch, int32_t, line->input_len);
        fill_trace_ids(maker, line, ids);
        goes_on = maker_add_ids(maker, ids, (int32_t)line->input_len, (int32_t)line->output_len,
                                (last_ms - first_ms) / 1000);
        arena_release(&maker->scratch, mark);
    }
    free(line);
    return status;
}

enum status make_timed_trace(struct maker *maker, struct error *err)
{
    return with_file(maker, use_timed_trace, err);
}
