// A token may be part of a character only. Its text is then found with the tokens before it as
// context, so that the texts of all tokens, joined, are the text.
#include "api_server/logprobs.h"

#include "base/memory.h"
#include "base/utf8.h"

static const double MIN_LOGPROB = -9999.0; // what minus infinity is reported as
static const struct str REPLACEMENT = {"\xEF\xBF\xBD", 3};

enum { MAX_CONTEXT = 4 }; // bytes of a character, so tokens of one

static struct str decode(const struct tokenizer *tokenizer, const int32_t *ids, int32_t num_ids,
                         struct arena *arena)
{
    return tokenizer_decode(tokenizer, ids, num_ids, false, arena);
}

struct str logprob_token_text(const struct tokenizer *tokenizer, const int32_t *before,
                              int32_t num_before, int32_t id, struct arena *arena)
{
    struct str alone = decode(tokenizer, &id, 1, arena);
    if (!str_ends_with(alone, REPLACEMENT) && !str_starts_with(alone, REPLACEMENT))
        return alone;
    for (int32_t k = 1; k <= MAX_CONTEXT && k <= num_before; k++) {
        int32_t ids[MAX_CONTEXT + 1];
        for (int32_t i = 0; i < k; i++)
            ids[i] = before[num_before - k + i];
        ids[k] = id;
        struct str joint = decode(tokenizer, ids, k + 1, arena);
        if (str_ends_with(joint, REPLACEMENT) || str_starts_with(joint, REPLACEMENT))
            continue;
        struct str prefix = decode(tokenizer, ids, k, arena);
        while (str_ends_with(prefix, REPLACEMENT))
            prefix.len -= REPLACEMENT.len;
        if (str_starts_with(joint, prefix))
            return str_slice(joint, prefix.len, joint.len);
    }
    return str_ends_with(alone, REPLACEMENT) ? STR("") : alone;
}

/** The text or "token_id:7" of the token at `position`, or of an alternative to it. */
static struct str token_name(const struct logprob_format *f, const int32_t *ids, int32_t position,
                             int32_t id)
{
    if (f->as_token_ids)
        return str_from(arena_printf(f->scratch, "token_id:%d", id));
    return logprob_token_text(f->tokenizer, ids, position, id, f->scratch);
}

static void write_logprob(struct buf *out, float value)
{
    buf_append_json_double(out, value > MIN_LOGPROB ? (double)value : MIN_LOGPROB);
}

static void write_chat_token(struct buf *out, struct str name, float logprob)
{
    buf_append_c(out, "{\"token\":");
    buf_append_json_string(out, name);
    buf_append_c(out, ",\"logprob\":");
    write_logprob(out, logprob);
    buf_append_c(out, ",\"bytes\":[");
    for (size_t i = 0; i < name.len; i++) {
        if (i > 0)
            buf_append_char(out, ',');
        buf_append_int(out, (unsigned char)name.ptr[i]);
    }
    buf_append_char(out, ']');
}

void logprobs_write_list(struct buf *out, const struct logprob_format *f,
                         const struct logprob_range *range, int32_t num_top)
{
    buf_append_char(out, '[');
    for (int32_t i = range->first; i < range->end; i++) {
        struct arena_mark mark = arena_mark(f->scratch);
        if (i > range->first)
            buf_append_char(out, ',');
        struct logprob_position at = {0};
        if (i < range->list->num_positions)
            at = range->list->positions[i];
        const int32_t *ids = range->list->token_ids + at.first;
        const float *logprobs = range->list->logprobs + at.first;
        float own = at.num_entries > 0 ? logprobs[0] : (float)MIN_LOGPROB;
        write_chat_token(out, token_name(f, range->ids, i, range->ids[i]), own);
        buf_append_c(out, ",\"top_logprobs\":[");
        for (int32_t k = 1; k < at.num_entries && k <= num_top; k++) {
            if (k > 1)
                buf_append_char(out, ',');
            write_chat_token(out, token_name(f, range->ids, i, ids[k]), logprobs[k]);
            buf_append_char(out, '}');
        }
        buf_append_c(out, "]}");
        arena_release(f->scratch, mark);
    }
    buf_append_char(out, ']');
}

void logprobs_write_chat(struct buf *out, const struct logprob_format *f,
                         const struct logprob_range *range, int32_t num_top)
{
    buf_append_c(out, "{\"content\":");
    logprobs_write_list(out, f, range, num_top);
    buf_append_char(out, '}');
}

/** Whether an earlier entry of the position has the same name: a key may stand only once. */
static bool is_repeated(const struct str *names, int32_t count, struct str name)
{
    for (int32_t i = 0; i < count; i++) {
        if (str_eq(names[i], name))
            return true;
    }
    return false;
}

static void write_top(struct buf *out, const struct logprob_format *f, const int32_t *all_ids,
                      int32_t position, const struct logprob_list *list, struct logprob_position at,
                      int32_t num_top)
{
    struct str *names = arena_array(f->scratch, struct str, at.num_entries);
    int32_t count = 0;
    buf_append_char(out, '{');
    for (int32_t k = 0; k < at.num_entries && k <= num_top; k++) {
        struct str name = token_name(f, all_ids, position, list->token_ids[at.first + k]);
        if (is_repeated(names, count, name))
            continue;
        if (count > 0)
            buf_append_char(out, ',');
        names[count++] = name;
        buf_append_json_string(out, name);
        buf_append_char(out, ':');
        write_logprob(out, list->logprobs[at.first + k]);
    }
    buf_append_char(out, '}');
}

/** The four columns of a completion's logprobs, side by side. */
struct columns {
    struct buf offsets, logprobs, tokens, top;
    int32_t count;
};

static void write_row(struct columns *c, const struct logprob_format *f, const int32_t *ids,
                      int32_t position, const struct logprob_list *list, int32_t list_position,
                      int32_t num_top, int64_t *text_offset)
{
    struct arena_mark mark = arena_mark(f->scratch);
    struct buf *columns[] = {&c->offsets, &c->logprobs, &c->tokens, &c->top};
    for (size_t i = 0; c->count > 0 && i < ARRAY_LEN(columns); i++)
        buf_append_char(columns[i], ',');
    c->count++;
    struct str name = token_name(f, ids, position, ids[position]);
    buf_append_int(&c->offsets, *text_offset);
    *text_offset += (int64_t)utf8_count(name);
    buf_append_json_string(&c->tokens, name);
    struct logprob_position at = {0};
    if (list_position >= 0 && list_position < list->num_positions)
        at = list->positions[list_position];
    if (at.num_entries > 0) {
        write_logprob(&c->logprobs, list->logprobs[at.first]);
        write_top(&c->top, f, ids, position, list, at, num_top);
    } else {
        buf_append_c(&c->logprobs, "null");
        buf_append_c(&c->top, "null");
    }
    arena_release(f->scratch, mark);
}

void logprobs_write_completion(struct buf *out, const struct logprob_format *f,
                               const struct logprob_range *prompt,
                               const struct logprob_range *range, int32_t num_top,
                               int64_t *text_offset)
{
    struct columns c = {0};
    for (int32_t i = prompt ? prompt->first : 0; prompt && i < prompt->end; i++)
        write_row(&c, f, prompt->ids, i, prompt->list, i - 1, num_top, text_offset);
    for (int32_t i = range->first; i < range->end; i++)
        write_row(&c, f, range->ids, i, range->list, i, num_top, text_offset);
    buf_append_c(out, "{\"text_offset\":[");
    buf_append(out, buf_str(&c.offsets));
    buf_append_c(out, "],\"token_logprobs\":[");
    buf_append(out, buf_str(&c.logprobs));
    buf_append_c(out, "],\"tokens\":[");
    buf_append(out, buf_str(&c.tokens));
    buf_append_c(out, "],\"top_logprobs\":[");
    buf_append(out, buf_str(&c.top));
    buf_append_c(out, "]}");
    buf_deinit(&c.offsets);
    buf_deinit(&c.logprobs);
    buf_deinit(&c.tokens);
    buf_deinit(&c.top);
}

void logprobs_write_prompt(struct buf *out, const struct logprob_format *f,
                           const int32_t *prompt_ids, int32_t num_prompt_ids,
                           const struct logprob_list *list)
{
    buf_append_c(out, "[null");
    for (int32_t p = 1; p < num_prompt_ids; p++) {
        struct arena_mark mark = arena_mark(f->scratch);
        if (p - 1 >= list->num_positions || list->positions[p - 1].num_entries == 0) {
            buf_append_c(out, ",null");
            continue;
        }
        struct logprob_position at = list->positions[p - 1];
        buf_append_c(out, ",{");
        for (int32_t k = 0; k < at.num_entries; k++) {
            int32_t id = list->token_ids[at.first + k];
            if (k > 0 && id == list->token_ids[at.first])
                continue; // the prompt's own token, which stands first
            buf_printf(out, "%s\"%d\":{\"logprob\":", k > 0 ? "," : "", id);
            write_logprob(out, list->logprobs[at.first + k]);
            buf_printf(out, ",\"rank\":%d,\"decoded_token\":", k == 0 ? at.rank : k);
            buf_append_json_string(out,
                                   logprob_token_text(f->tokenizer, prompt_ids, p, id, f->scratch));
            buf_append_char(out, '}');
        }
        buf_append_char(out, '}');
        arena_release(f->scratch, mark);
    }
    buf_append_char(out, ']');
}
