// A worker without a model, for tests of the scheduler. It keeps its rows and block tables only by
// what scheduler_output says, as a real worker does, and a shadow of the KV cache in which a slot
// holds a hash of all tokens up to its own. The next token of a row is computed from what the row
// reads there through its block tables, so a wrong block, a block that was never written or a block
// that was overwritten gives other tokens than fake_next_token(), which knows the tokens alone.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "message/message.h"

enum { FAKE_VOCAB_SIZE = 64, FAKE_MAX_LEN = 512 };

static inline uint64_t fake_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b * 0x9E3779B97F4A7C15u) + 0xD1B54A32D192ED03u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// The first position that the token at `position` sees in a group.
static inline int32_t fake_first_visible(const struct kv_cache_group *group, int32_t position)
{
    return group->kind == KV_CACHE_GROUP_SLIDING ? max_i32(position - group->window + 1, 0) : 0;
}

/** What follows `tokens`, from the tokens alone. `salt` stands for the cache salt. */
static inline int32_t fake_next_token(const struct kv_cache_config *config, const int32_t *tokens,
                                      int32_t num_tokens, uint64_t salt)
{
    uint64_t values[FAKE_MAX_LEN], value = salt, sum = 0;
    for (int32_t i = 0; i < num_tokens; i++)
        value = values[i] = fake_mix(value, (uint64_t)tokens[i]);
    for (int32_t g = 0; g < config->num_groups; g++) {
        for (int32_t i = fake_first_visible(&config->groups[g], num_tokens - 1); i < num_tokens;
             i++)
            sum = fake_mix(sum, values[i] + (uint64_t)g);
    }
    return (int32_t)(sum % FAKE_VOCAB_SIZE);
}

struct fake_row {
    bool used;
    uint64_t salt;
    int32_t num_tokens, num_computed;
    int32_t token_ids[FAKE_MAX_LEN];
    bool prompt_logprobs;
    enum pooling_type pooling;
    float pooled; // the vector that it made
    int32_t num_blocks[MAX_KV_CACHE_GROUPS];
    int32_t blocks[MAX_KV_CACHE_GROUPS][FAKE_MAX_LEN];
};

struct fake_worker {
    struct kv_cache_config config;
    int32_t max_num_seqs;
    struct fake_row *rows;
    struct row_output *outputs;
    uint64_t *slots;       // [num_blocks * block_size]
    int64_t *slot_steps;   // the step that wrote the slot
    int32_t *block_writer; // [num_blocks] the row that wrote to it last
    int64_t *block_steps;  // and in which step
    uint64_t (*salt_of)(uint64_t request_id);
    int32_t nan_one_in; // > 0: one in so many draws finds no finite logits
    uint64_t random;
};

static inline void fake_worker_init(struct fake_worker *w, const struct kv_cache_config *config,
                                    int32_t max_num_seqs)
{
    *w = (struct fake_worker){.config = *config, .max_num_seqs = max_num_seqs};
    size_t num_blocks = (size_t)config->num_blocks;
    size_t num_slots = num_blocks * (size_t)config->block_size;
    w->rows = xcalloc((size_t)max_num_seqs, sizeof(*w->rows));
    w->outputs = xcalloc((size_t)max_num_seqs, sizeof(*w->outputs));
    w->slots = xcalloc(num_slots, sizeof(*w->slots));
    w->slot_steps = xcalloc(num_slots, sizeof(*w->slot_steps));
    w->block_writer = xcalloc(num_blocks, sizeof(*w->block_writer));
    w->block_steps = xcalloc(num_blocks, sizeof(*w->block_steps));
    for (size_t i = 0; i < num_slots; i++)
        w->slot_steps[i] = -1;
    for (size_t i = 0; i < num_blocks; i++)
        w->block_steps[i] = -1;
}

static inline void fake_worker_deinit(struct fake_worker *w)
{
    free(w->rows);
    free(w->outputs);
    free(w->slots);
    free(w->slot_steps);
    free(w->block_writer);
    free(w->block_steps);
    *w = (struct fake_worker){0};
}

static inline size_t fake_slot(const struct fake_worker *w, const struct fake_row *row, int32_t g,
                               int32_t position)
{
    int32_t entry = position / w->config.block_size;
    assert_true(entry < row->num_blocks[g]);
    int32_t block = row->blocks[g][entry];
    assert_in_range(block, 0, w->config.num_blocks - 1);
    return (size_t)block * (size_t)w->config.block_size + (size_t)(position % w->config.block_size);
}

static inline void fake_write(struct fake_worker *w, int32_t row_index, int32_t g, int32_t position,
                              int64_t step)
{
    struct fake_row *row = &w->rows[row_index];
    uint64_t before = position == 0 ? row->salt : w->slots[fake_slot(w, row, g, position - 1)];
    size_t slot = fake_slot(w, row, g, position);
    int32_t block = (int32_t)(slot / (size_t)w->config.block_size);
    assert_int_not_equal(w->slot_steps[slot], step); // no slot is written twice in a step
    assert_false(w->block_steps[block] == step && w->block_writer[block] != row_index);
    w->slots[slot] = fake_mix(before, (uint64_t)row->token_ids[position]);
    w->slot_steps[slot] = step;
    w->block_steps[block] = step;
    w->block_writer[block] = row_index;
}

static inline int32_t fake_draw(struct fake_worker *w, const struct fake_row *row)
{
    w->random = fake_mix(w->random, 1);
    if (w->nan_one_in > 0 && w->random % (uint64_t)w->nan_one_in == 0)
        return -1;
    uint64_t sum = 0;
    for (int32_t g = 0; g < w->config.num_groups; g++) {
        int32_t last = row->num_tokens - 1;
        for (int32_t i = fake_first_visible(&w->config.groups[g], last); i <= last; i++)
            sum = fake_mix(sum, w->slots[fake_slot(w, row, g, i)] + (uint64_t)g);
    }
    return (int32_t)(sum % FAKE_VOCAB_SIZE);
}

static inline void fake_take_new(struct fake_worker *w, const struct scheduled_new_request *new)
{
    assert_in_range(new->row, 0, w->max_num_seqs - 1);
    struct fake_row *row = &w->rows[new->row];
    assert_false(row->used); // its last owner gave it back
    assert_in_range(new->num_tokens, 1, FAKE_MAX_LEN);
    *row = (struct fake_row){.used = true,
                             .num_tokens = new->num_tokens,
                             .num_computed = -1,
                             .prompt_logprobs = new->sampling->num_prompt_logprobs >= 0,
                             .pooling = new->pooling.type};
    row->salt = w->salt_of ? w->salt_of(new->request_id) : 0;
    memcpy(row->token_ids, new->token_ids, (size_t) new->num_tokens * sizeof(int32_t));
}

/** A vector of one element: the token that would follow. */
static inline void fake_pool(struct fake_worker *w, struct fake_row *row, struct row_output *output)
{
    int32_t token = fake_draw(w, row);
    row->pooled = (float)token;
    output->num_pooled = token >= 0 ? 1 : 0;
    output->pooled = token >= 0 ? &row->pooled : NULL;
}

/** Runs a step. `*result` lives until the next one. */
static inline void fake_worker_run(struct fake_worker *w, const struct scheduler_output *step,
                                   struct model_runner_output *result)
{
    for (int32_t i = 0; i < step->num_finished_rows; i++)
        w->rows[step->finished_rows[i]].used = false;
    for (int32_t i = 0; i < step->num_new_requests; i++)
        fake_take_new(w, &step->new_requests[i]);
    int32_t total = 0;
    for (int32_t i = 0; i < step->num_rows; i++) {
        const struct scheduled_row *in = &step->rows[i];
        struct fake_row *row = &w->rows[in->row];
        assert_true(row->used);
        // A fresh row may start behind a cached prefix; afterwards nothing is skipped.
        assert_true(row->num_computed == -1 || row->num_computed == in->num_computed_tokens);
        if (row->num_computed == -1 && row->pooling == POOLING_MEAN)
            assert_int_equal(in->num_computed_tokens, 0); // a mean needs every token
        assert_true(in->num_scheduled_tokens > 0);
        int32_t end = in->num_computed_tokens + in->num_scheduled_tokens;
        assert_true(end <= row->num_tokens);
        assert_int_equal(in->samples, end == row->num_tokens);
        total += in->num_scheduled_tokens;
        for (int32_t g = 0; g < w->config.num_groups; g++) {
            for (int32_t k = 0; k < in->num_new_blocks[g]; k++)
                row->blocks[g][row->num_blocks[g]++] = in->new_blocks[g][k];
            for (int32_t k = 0; k < in->num_freed_blocks[g]; k++)
                row->blocks[g][k] = NO_BLOCK;
            for (int32_t p = in->num_computed_tokens; p < end; p++)
                fake_write(w, in->row, g, p, step->step);
        }
        row->num_computed = end;
    }
    assert_int_equal(total, step->num_scheduled_tokens);
    for (int32_t i = 0; i < step->num_rows; i++) {
        const struct scheduled_row *in = &step->rows[i];
        struct fake_row *row = &w->rows[in->row];
        w->outputs[i] = (struct row_output){.row = in->row, .token_id = -1};
        if (in->samples && row->pooling != POOLING_NONE) {
            fake_pool(w, row, &w->outputs[i]);
        } else if (in->samples) {
            int32_t token = fake_draw(w, row);
            w->outputs[i].token_id = token;
            if (row->num_tokens < FAKE_MAX_LEN) // a step may be decided before the failure is known
                row->token_ids[row->num_tokens++] = max_i32(token, 0);
        }
    }
    *result = (struct model_runner_output){.num_rows = step->num_rows, .rows = w->outputs};
}
