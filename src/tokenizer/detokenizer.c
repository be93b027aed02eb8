// The prefix-offset method. A window holds the last tokens: first the context, whose text is out
// already, then the pending ones.
//
//     ids:  | context | pending |
//           0        read      len
//
// The text of a step is what decoding the window gives beyond decoding the context alone. So
// decoders that treat the first token in their own way (a blank that is stripped, a mark that
// vanishes) do so to the context. If the text ends in U+FFFD, the last token may hold the first
// bytes of a character, and all pending tokens wait.
#include "base/memory.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

enum {
    NUM_PROMPT_IDS = 6,      // of the prompt, as context
    MAX_PROMPT_IDS = 32,     // when the last few begin inside a character
    MAX_PENDING = 256,       // tokens that end in U+FFFD are noise at last, and are let go
    MAX_CHARACTER_TOKENS = 3 // that an incomplete character can consist of
};

struct detokenizer {
    const struct tokenizer *tokenizer;
    bool skip_special_tokens;
    bool joins_added, last_is_added;
    int32_t *ids;
    int32_t len, capacity;
    int32_t read;
    struct arena arena; // of one step
};

static struct str decode(struct detokenizer *detokenizer, int32_t start, int32_t end)
{
    return tokenizer_decode(detokenizer->tokenizer, detokenizer->ids + start, end - start,
                            detokenizer->skip_special_tokens, &detokenizer->arena);
}

/** Whether decoding leaves the id out, so that the window need not hold it. */
static bool has_no_text(const struct detokenizer *detokenizer, int32_t id)
{
    return tokenizer_id_to_token(detokenizer->tokenizer, id).len == 0 ||
           (detokenizer->skip_special_tokens && tokenizer_is_special(detokenizer->tokenizer, id));
}

static void append_id(struct detokenizer *detokenizer, int32_t id)
{
    if (detokenizer->len == detokenizer->capacity) {
        detokenizer->capacity = detokenizer->capacity * 2 + 16;
        detokenizer->ids =
            xrealloc(detokenizer->ids, (size_t)detokenizer->capacity * sizeof(*detokenizer->ids));
    }
    detokenizer->ids[detokenizer->len++] = id;
}

/** Forgets the first `count` ids. */
static void drop_ids(struct detokenizer *detokenizer, int32_t count)
{
    for (int32_t i = count; i < detokenizer->len; i++)
        detokenizer->ids[i - count] = detokenizer->ids[i];
    detokenizer->len -= count;
    detokenizer->read -= count;
}

static bool is_replacement(struct str text)
{
    return str_starts_with(text, STR("\xEF\xBF\xBD"));
}

/**
 * Takes the end of the prompt as context. It should not begin inside a character: byte tokens are
 * decoded in runs, and one stray byte spoils its run.
 */
static void prime(struct detokenizer *detokenizer, const int32_t *prompt_ids, int32_t num_ids)
{
    int32_t tail[MAX_PROMPT_IDS];
    int32_t num_tail = 0;
    for (int32_t i = num_ids; i-- > 0 && num_tail < MAX_PROMPT_IDS;)
        if (!has_no_text(detokenizer, prompt_ids[i]))
            tail[num_tail++] = prompt_ids[i];
    for (int32_t i = num_tail; i-- > 0;)
        append_id(detokenizer, tail[i]);
    int32_t start = max_i32(0, num_tail - NUM_PROMPT_IDS);
    while (start > 0 && is_replacement(decode(detokenizer, start, num_tail)))
        start--;
    arena_reset(&detokenizer->arena);
    drop_ids(detokenizer, start);
    detokenizer->read = detokenizer->len;
}

struct detokenizer *detokenizer_create(const struct tokenizer *tokenizer, const int32_t *prompt_ids,
                                       int32_t num_prompt_ids, bool skip_special_tokens)
{
    struct detokenizer *detokenizer = xcalloc(1, sizeof(*detokenizer));
    detokenizer->tokenizer = tokenizer;
    detokenizer->skip_special_tokens = skip_special_tokens;
    detokenizer->capacity = 2 * NUM_PROMPT_IDS;
    detokenizer->ids = xcalloc((size_t)detokenizer->capacity, sizeof(*detokenizer->ids));
    prime(detokenizer, prompt_ids, num_prompt_ids);
    return detokenizer;
}

void detokenizer_destroy(struct detokenizer *detokenizer)
{
    if (!detokenizer)
        return;
    free(detokenizer->ids);
    arena_deinit(&detokenizer->arena);
    free(detokenizer);
}

static size_t skip_characters(struct str text, size_t count)
{
    size_t at = 0, len;
    for (; count > 0 && at < text.len; count--, at += len)
        utf8_decode(str_slice(text, at, text.len), &len);
    return at;
}

/** Bytes that both have in common at the start, in whole characters. */
static size_t common_prefix(struct str a, struct str b)
{
    size_t at = 0, len;
    while (at < a.len && at < b.len) {
        uint32_t c = utf8_decode(str_slice(a, at, a.len), &len);
        size_t other_len;
        if (c != utf8_decode(str_slice(b, at, b.len), &other_len))
            break;
        at += len;
    }
    return at;
}

/**
 * What `text` adds to `context`, of which it is the continuation. A context that ends inside a
 * character shows a U+FFFD there, which the continuation may turn into that character.
 */
static struct str added_text(struct str context, struct str text)
{
    size_t known = str_ends_with(context, STR("\xEF\xBF\xBD"))
                       ? common_prefix(context, text)
                       : skip_characters(text, utf8_count(context));
    return str_slice(text, known, text.len);
}

/** Lets go of pending tokens although their text ends in U+FFFD. */
static void emit_noise(struct detokenizer *detokenizer, struct str context, struct str text,
                       struct buf *out)
{
    // The very last tokens may still be the beginning of a character: stop before them if there the
    // text can be cut.
    int32_t len = detokenizer->len;
    int32_t end = len - MAX_CHARACTER_TOKENS;
    struct str head = {0};
    for (; end < len; end++) {
        head = decode(detokenizer, 0, end);
        struct str tail = decode(detokenizer, end, len);
        if (head.len + tail.len == text.len && str_starts_with(text, head) &&
            str_ends_with(text, tail))
            break;
    }
    buf_append(out, added_text(context, end < len ? head : text));
    detokenizer->read = end;
    drop_ids(detokenizer, end - 1);
}

void detokenizer_join_added_tokens(struct detokenizer *detokenizer)
{
    detokenizer->joins_added = true;
}

/** The text of a token without the blank that decoders which join tokens by blanks put before it,
 *  where it is an added token behind another one. */
static struct str join_added(struct detokenizer *detokenizer, int32_t id, struct str added)
{
    bool follows = detokenizer->last_is_added;
    detokenizer->last_is_added = tokenizer_is_added(detokenizer->tokenizer, id);
    struct str content = tokenizer_id_to_token(detokenizer->tokenizer, id);
    bool has_blank =
        added.len == content.len + 1 && added.ptr[0] == ' ' && str_ends_with(added, content);
    return follows && detokenizer->last_is_added && has_blank ? content : added;
}

void detokenizer_step(struct detokenizer *detokenizer, int32_t id, struct buf *out)
{
    if (has_no_text(detokenizer, id))
        return;
    append_id(detokenizer, id);
    struct str context = decode(detokenizer, 0, detokenizer->read);
    struct str text = decode(detokenizer, 0, detokenizer->len);
    struct str added = added_text(context, text);
    if (detokenizer->joins_added)
        added = join_added(detokenizer, id, added);
    if (added.len > 0 && !str_ends_with(text, STR("\xEF\xBF\xBD"))) {
        buf_append(out, added);
        drop_ids(detokenizer, detokenizer->read);
        detokenizer->read = detokenizer->len;
    } else if (detokenizer->len - detokenizer->read >= MAX_PENDING) {
        emit_noise(detokenizer, context, text, out);
    }
    arena_reset(&detokenizer->arena);
}

void detokenizer_finish(struct detokenizer *detokenizer, struct buf *out)
{
    struct str context = decode(detokenizer, 0, detokenizer->read);
    struct str text = decode(detokenizer, 0, detokenizer->len);
    buf_append(out, added_text(context, text));
    drop_ids(detokenizer, detokenizer->read);
    detokenizer->read = detokenizer->len;
    arena_reset(&detokenizer->arena);
}
