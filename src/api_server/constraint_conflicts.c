// What can be known at admission is decided here: which tokens may ever come is a finite list
// (allowed_token_ids without forbidden ones), and whether such a list can spell one of the choices
// is a walk over the automaton's states. Where words of several tokens are forbidden it depends on
// the way through the text; the sampler finds that out, and the request ends with the same kind of
// error.
#include "api_server/constraint_conflicts.h"

#include <inttypes.h>

#include "base/buf.h"
#include "message/byte_automaton.h"

enum { MAX_WALK_STEPS = 1 << 22 }; // some ten milliseconds; longer walks are left to the sampler

static enum status conflict(struct api_error *err, const char *a, const char *b, const char *why)
{
    return api_error_param(err, a, NULL, "%s and %s contradict each other: %s.", a, b, why);
}

/** Whether the token is a forbidden word by itself. */
static bool is_bad_word(const struct sampling_params *p, int32_t token_id)
{
    for (int32_t i = 0; i < p->num_bad_word_ints; i += 1 + p->bad_words[i]) {
        if (p->bad_words[i] == 1 && p->bad_words[i + 1] == token_id)
            return true;
    }
    return false;
}

static bool is_end(const struct sampling_params *p, int32_t token_id)
{
    bool found = token_id == p->eos_token_id;
    for (int32_t i = 0; i < p->num_stop_token_ids; i++)
        found |= token_id == p->stop_token_ids[i];
    return found;
}

static bool all_ends_are_bad(const struct sampling_params *p)
{
    bool all = p->eos_token_id < 0 || is_bad_word(p, p->eos_token_id);
    for (int32_t i = 0; i < p->num_stop_token_ids; i++)
        all &= is_bad_word(p, p->stop_token_ids[i]);
    return all;
}

static int64_t longest_choice(const struct sampling_fields *f)
{
    size_t longest = 0;
    for (int32_t i = 0; i < f->num_choices; i++)
        longest = f->choices[i].len > longest ? f->choices[i].len : longest;
    return (int64_t)longest;
}

/** Texts of the listed tokens that are not forbidden and do not end the answer. */
static int32_t list_texts(const struct tokenizer *tokenizer, const struct sampling_params *p,
                          struct str *texts, struct arena *arena)
{
    int32_t num = 0;
    for (int32_t i = 0; i < p->num_allowed_token_ids; i++) {
        int32_t id = p->allowed_token_ids[i];
        struct str text = tokenizer_token_bytes(tokenizer, id, arena);
        if (text.len > 0 && !is_bad_word(p, id))
            texts[num++] = text;
    }
    return num;
}

/** Whether the texts can be joined to one that the automaton takes. True also where it would take
 *  too long to find out. */
static bool can_spell(const uint32_t *automaton, const struct str *texts, int32_t num_texts,
                      struct arena *arena)
{
    int32_t num_states = (int32_t)automaton[0], num_open = 0;
    bool *is_seen = arena_calloc(arena, (size_t)num_states, sizeof(bool));
    int32_t *open = arena_array(arena, int32_t, num_states);
    int64_t num_steps = 0;
    open[num_open++] = 0;
    is_seen[0] = true;
    while (num_open > 0) {
        int32_t from = open[--num_open];
        if (byte_automaton_accepts(automaton, from))
            return true;
        for (int32_t i = 0; i < num_texts; i++) {
            int32_t state = from;
            for (size_t k = 0; k < texts[i].len && state != AUTOMATON_DEAD; k++, num_steps++)
                state = byte_automaton_step(automaton, state, (uint8_t)texts[i].ptr[k]);
            if (num_steps > MAX_WALK_STEPS)
                return true;
            if (state != AUTOMATON_DEAD && !is_seen[state]) {
                is_seen[state] = true;
                open[num_open++] = state;
            }
        }
    }
    return false;
}

static enum status check_choices(const struct sampling_fields *f, const struct tokenizer *tokenizer,
                                 const struct sampling_params *p, struct arena *arena,
                                 struct api_error *err)
{
    if (p->min_tokens > longest_choice(f))
        return conflict(err, "structured_outputs", "min_tokens",
                        "every choice has fewer bytes than min_tokens asks for tokens");
    if (all_ends_are_bad(p))
        return conflict(err, "structured_outputs", "bad_words",
                        "the end-of-sequence token that has to follow a choice is a bad word");
    if (p->num_allowed_token_ids == 0)
        return STATUS_OK;
    struct str *texts = arena_array(arena, struct str, p->num_allowed_token_ids);
    int32_t num_texts = list_texts(tokenizer, p, texts, arena);
    if (!can_spell(p->automaton, texts, num_texts, arena))
        return conflict(err, "structured_outputs", "allowed_token_ids",
                        "no choice can be spelled with the allowed tokens");
    return STATUS_OK;
}

static enum status check_list(const struct sampling_params *p, struct api_error *err)
{
    int32_t num_good = 0, num_texts = 0;
    for (int32_t i = 0; i < p->num_allowed_token_ids; i++) {
        bool is_bad = is_bad_word(p, p->allowed_token_ids[i]);
        num_good += !is_bad;
        num_texts += !is_bad && !is_end(p, p->allowed_token_ids[i]);
    }
    if (num_good == 0)
        return conflict(err, "allowed_token_ids", "bad_words",
                        "each of the allowed tokens is a bad word");
    if (num_texts == 0 && p->min_tokens > 0)
        return conflict(err, "allowed_token_ids", "min_tokens",
                        "each of the allowed tokens ends the answer, which min_tokens forbids");
    return STATUS_OK;
}

enum status constraint_conflicts_check(const struct sampling_fields *f,
                                       const struct tokenizer *tokenizer,
                                       const struct sampling_params *p, struct arena *arena,
                                       struct api_error *err)
{
    if (p->num_automaton_words > 0)
        return check_choices(f, tokenizer, p, arena, err);
    return p->num_allowed_token_ids > 0 ? check_list(p, err) : STATUS_OK;
}

void constraint_conflicts_explain(const struct sampling_fields *f, int32_t num_outputs,
                                  struct api_error *err)
{
    const struct {
        const char *name;
        bool is_given;
    } fields[] = {
        {"structured_outputs", f->num_choices > 0},
        {"allowed_token_ids", f->num_allowed_token_ids > 0},
        {"bad_words", f->num_bad_words > 0},
        {"min_tokens", f->min_tokens > num_outputs},
    };
    struct buf names = {0};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!fields[i].is_given)
            continue;
        buf_printf(&names, "%s%s", first ? " and " : "", fields[i].name);
        first = first ? first : fields[i].name;
    }
    api_error_param(err, first ? first : "structured_outputs", NULL,
                    STR_FORMAT " leave no token that may come after %d output tokens.",
                    STR_ARG(buf_str(&names)), num_outputs);
    buf_deinit(&names);
}
