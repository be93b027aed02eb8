// The persistent batch: see input_batch.h.
#include "worker/input_batch.h"

#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"

enum {
    ALIGNMENT = 64,
    EXTRA_BYTES = 16 << 20, // lists of tokens that go to a device with a step
};

/** Hands out parts of one mapping; with a NULL base it only counts. */
struct carver {
    char *base;
    size_t used_bytes;
};

static void *carve(struct carver *carver, size_t count, size_t size_bytes)
{
    void *part = carver->base ? carver->base + carver->used_bytes : NULL;
    size_t bytes = count * size_bytes;
    carver->used_bytes += (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    return part;
}

#define CARVE(carver, type, count) ((type *)carve((carver), (size_t)(count), sizeof(type)))

static void carve_row(struct batch_row *row, struct carver *carver,
                      const struct input_batch_options *options, int32_t max_blocks)
{
    // One more than fits: the last token drawn is never computed.
    int32_t *token_ids = CARVE(carver, int32_t, options->max_model_len + 1);
    int32_t *stop_token_ids = CARVE(carver, int32_t, MAX_STOP_TOKEN_IDS);
    struct logit_bias *logit_bias = CARVE(carver, struct logit_bias, MAX_LOGIT_BIAS);
    int32_t *allowed_token_ids = CARVE(carver, int32_t, MAX_ALLOWED_TOKEN_IDS);
    if (row) {
        row->token_ids = token_ids;
        row->sampling.stop_token_ids = stop_token_ids;
        row->sampling.logit_bias = logit_bias;
        row->sampling.allowed_token_ids = allowed_token_ids;
    }
    for (int32_t g = 0; g < options->kv_cache->num_groups; g++) {
        int32_t *table = CARVE(carver, int32_t, max_blocks);
        if (row)
            row->block_table[g] = table;
    }
}

/** Lays all arrays out; `batch` without memory only learns how much they take. */
static size_t lay_out(struct input_batch *batch)
{
    const struct input_batch_options *options = &batch->options;
    struct carver carver = {batch->memory, 0};
    batch->max_blocks = (int32_t)ceil_div(options->max_model_len, options->kv_cache->block_size);
    int32_t num_seqs = options->max_num_seqs;
    batch->rows = CARVE(&carver, struct batch_row, num_seqs);
    for (int32_t i = 0; i < num_seqs; i++)
        carve_row(batch->rows ? &batch->rows[i] : NULL, &carver, options, batch->max_blocks);
    return carver.used_bytes;
}

/** Tables first: where they lie never changes. */
static size_t lay_out_tables(const struct input_batch *batch, struct step_arrays *arrays,
                             char *memory)
{
    const struct input_batch_options *options = &batch->options;
    struct carver carver = {memory, 0};
    for (int32_t g = 0; g < options->kv_cache->num_groups; g++)
        arrays->tables[g] =
            CARVE(&carver, int32_t, (size_t)options->max_num_seqs * batch->max_blocks);
    return carver.used_bytes;
}

/** Everything else of a step of so many tokens, sequences and rows of logits. */
static size_t lay_out_step(const struct input_batch *batch, const struct step_counts *counts,
                           struct step_arrays *arrays, char *memory)
{
    const struct input_batch_options *options = &batch->options;
    struct carver carver = {memory, 0};
    arrays->token_ids = CARVE(&carver, int32_t, counts->num_tokens);
    arrays->positions = CARVE(&carver, int32_t, counts->num_tokens);
    arrays->token_seq = CARVE(&carver, int32_t, counts->num_tokens);
    arrays->drawn_indices = CARVE(&carver, int32_t, counts->num_tokens);
    arrays->query_start = CARVE(&carver, int32_t, counts->num_seqs + 1);
    arrays->seq_lens = CARVE(&carver, int32_t, counts->num_seqs + 1);
    arrays->logits_rows = CARVE(&carver, int32_t, counts->num_logits);
    arrays->samples = CARVE(&carver, struct sample_params, counts->num_logits);
    for (int32_t g = 0; g < options->kv_cache->num_groups; g++)
        arrays->slot_mapping[g] = CARVE(&carver, int64_t, counts->num_tokens);
    // What a recording reads ends here: the rest may lie anywhere.
    bool is_packed = !options->dev->has_host_memory;
    for (int32_t g = 0; g < options->kv_cache->num_groups && is_packed; g++)
        arrays->packed[g] = CARVE(&carver, int32_t, (size_t)counts->num_seqs * counts->num_columns);
    arrays->extra = memory ? memory + carver.used_bytes : NULL;
    return carver.used_bytes;
}

/** Sizes of the largest step. */
static void measure_step(struct input_batch *batch)
{
    const struct input_batch_options *options = &batch->options;
    batch->max_blocks = (int32_t)ceil_div(options->max_model_len, options->kv_cache->block_size);
    const struct step_counts most = {options->max_num_batched_tokens, options->max_num_seqs,
                                     options->max_num_batched_tokens, batch->max_blocks};
    struct step_arrays arrays;
    batch->table_bytes = lay_out_tables(batch, &arrays, NULL);
    batch->copied_bytes = lay_out_step(batch, &most, &arrays, NULL);
    if (!options->dev->has_host_memory)
        batch->copied_bytes += EXTRA_BYTES;
}

size_t input_batch_step_bytes(const struct input_batch_options *options)
{
    struct input_batch batch = {.options = *options};
    measure_step(&batch);
    return batch.table_bytes + batch.copied_bytes;
}

size_t input_batch_staging_bytes(const struct input_batch_options *options)
{
    struct input_batch batch = {.options = *options};
    measure_step(&batch);
    return options->dev->has_host_memory ? 0 : (size_t)options->num_steps * batch.copied_bytes;
}

size_t input_batch_bytes(const struct input_batch_options *options)
{
    struct input_batch batch = {.options = *options};
    return lay_out(&batch);
}

enum status input_batch_init(struct input_batch *batch, const struct input_batch_options *options,
                             struct error *err)
{
    *batch = (struct input_batch){.options = *options};
    size_t bytes = lay_out(batch);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        *batch = (struct input_batch){0};
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes for the batch of %d requests were refused", bytes,
                         options->max_num_seqs);
    }
    batch->memory = memory;
    batch->memory_bytes = bytes;
    lay_out(batch);
    measure_step(batch);
    struct device *dev = options->dev;
    size_t step_bytes = batch->table_bytes + batch->copied_bytes;
    bool is_whole = true;
    if (dev->has_host_memory) {
        batch->device_memory = dev->ops.alloc_staging(dev, step_bytes);
        is_whole = batch->device_memory != NULL;
    } else {
        batch->device_memory = dev->ops.alloc(dev, step_bytes);
        is_whole = batch->device_memory != NULL;
        for (int32_t i = 0; i < options->num_steps; i++) {
            batch->host_memories[i] = dev->ops.alloc_staging(dev, batch->copied_bytes);
            is_whole = is_whole && batch->host_memories[i];
        }
    }
    if (!is_whole) {
        input_batch_deinit(batch);
        return error_set(err, STATUS_OUT_OF_MEMORY,
                         "%zu bytes for a step's block tables were refused", step_bytes);
    }
    return STATUS_OK;
}

void input_batch_deinit(struct input_batch *batch)
{
    if (!batch || !batch->memory)
        return;
    struct device *dev = batch->options.dev;
    for (int32_t i = 0; i < batch->options.max_num_seqs; i++)
        free(batch->rows[i].extra);
    munmap(batch->memory, batch->memory_bytes);
    if (dev->has_host_memory)
        dev->ops.free_staging(dev, batch->device_memory);
    else
        dev->ops.free(dev, batch->device_memory);
    for (int32_t i = 0; i < MAX_BATCH_STEPS; i++) {
        if (batch->host_memories[i])
            dev->ops.free_staging(dev, batch->host_memories[i]);
    }
    *batch = (struct input_batch){0};
}

static struct batch_row *row_at(struct input_batch *batch, int32_t row)
{
    CHECK(row >= 0 && row < batch->options.max_num_seqs);
    return &batch->rows[row];
}

static void copy_array(const void *to, const void *from, size_t count, size_t size_bytes)
{
    if (count > 0)
        memcpy((void *)(uintptr_t)to, from, count * size_bytes); // `to` is the row's own array
}

/** Arrays that few requests have and whose bounds are too wide to hold room for them in each row.
 */
static void copy_extra(struct batch_row *row, struct sampling_params *copy,
                       const struct sampling_params *from)
{
    CHECK(from->num_bad_word_ints >= 0 && from->num_bad_word_ints <= MAX_BAD_WORD_INTS);
    CHECK(from->num_automaton_words >= 0 && from->num_automaton_words <= MAX_AUTOMATON_WORDS);
    CHECK(from->num_logprob_token_ids >= 0 && from->num_logprob_token_ids <= MAX_LOGPROB_TOKEN_IDS);
    size_t num_bad = (size_t)from->num_bad_word_ints;
    size_t num_listed = (size_t)from->num_logprob_token_ids;
    size_t bytes = (num_bad + num_listed) * sizeof(int32_t);
    if (bytes > row->extra_bytes) {
        row->extra = xrealloc(row->extra, bytes);
        row->extra_bytes = bytes;
    }
    int32_t *ints = (int32_t *)(void *)row->extra;
    copy->bad_words = ints;
    copy->logprob_token_ids = ints ? ints + num_bad : NULL;
    copy_array(copy->bad_words, from->bad_words, num_bad, sizeof(int32_t));
    copy_array(copy->logprob_token_ids, from->logprob_token_ids, num_listed, sizeof(int32_t));
}

static void copy_sampling(struct batch_row *row, const struct sampling_params *from)
{
    struct sampling_params *own = &row->sampling;
    CHECK(from->num_stop_token_ids >= 0 && from->num_stop_token_ids <= MAX_STOP_TOKEN_IDS);
    CHECK(from->num_logit_bias >= 0 && from->num_logit_bias <= MAX_LOGIT_BIAS);
    CHECK(from->num_allowed_token_ids >= 0 && from->num_allowed_token_ids <= MAX_ALLOWED_TOKEN_IDS);
    struct sampling_params copy = *from;
    copy.stop_token_ids = own->stop_token_ids;
    copy.logit_bias = own->logit_bias;
    copy.allowed_token_ids = own->allowed_token_ids;
    copy_array(copy.stop_token_ids, from->stop_token_ids, (size_t)from->num_stop_token_ids,
               sizeof(int32_t));
    copy_array(copy.logit_bias, from->logit_bias, (size_t)from->num_logit_bias,
               sizeof(struct logit_bias));
    copy_array(copy.allowed_token_ids, from->allowed_token_ids, (size_t)from->num_allowed_token_ids,
               sizeof(int32_t));
    copy_extra(row, &copy, from);
    *own = copy;
}

static void add_request(struct input_batch *batch, const struct scheduled_new_request *request)
{
    struct batch_row *row = row_at(batch, request->row);
    CHECK(!row->is_used);
    CHECK(request->num_prompt_tokens >= 1 && request->num_prompt_tokens <= request->num_tokens);
    CHECK(request->num_tokens <= batch->options.max_model_len);
    row->is_used = true;
    row->request_id = request->request_id;
    row->occupant = ++batch->num_occupants;
    row->num_pending = 0;
    row->num_prompt_tokens = request->num_prompt_tokens;
    row->num_tokens = request->num_tokens;
    memcpy(row->token_ids, request->token_ids, (size_t)request->num_tokens * sizeof(int32_t));
    copy_sampling(row, request->sampling);
    row->pooling = request->pooling;
    row->automaton_state = 0;
    row->automaton_id = 0;
    memset(row->num_blocks, 0, sizeof(row->num_blocks));
}

static void extend_tables(struct input_batch *batch, const struct scheduled_row *scheduled)
{
    struct batch_row *row = row_at(batch, scheduled->row);
    const struct kv_cache_config *kv_cache = batch->options.kv_cache;
    CHECK(row->is_used);
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        int32_t num_new = scheduled->num_new_blocks[g];
        CHECK(num_new >= 0 && num_new <= batch->max_blocks - row->num_blocks[g]);
        for (int32_t i = 0; i < num_new; i++) {
            int32_t block = scheduled->new_blocks[g][i];
            CHECK(block == NO_BLOCK || (block >= 0 && block < kv_cache->num_blocks));
            row->block_table[g][row->num_blocks[g]++] = block;
        }
        int32_t num_freed = scheduled->num_freed_blocks[g];
        CHECK(num_freed >= 0 && num_freed <= row->num_blocks[g]);
        // Freed entries are a prefix that only grows: stop at what is marked already.
        for (int32_t i = num_freed - 1; i >= 0 && row->block_table[g][i] != NO_BLOCK; i--)
            row->block_table[g][i] = NO_BLOCK;
    }
}

void input_batch_update(struct input_batch *batch, const struct scheduler_output *step)
{
    for (int32_t i = 0; i < step->num_finished_rows; i++) {
        struct batch_row *row = row_at(batch, step->finished_rows[i]);
        CHECK(row->is_used);
        row->is_used = false;
    }
    for (int32_t i = 0; i < step->num_new_requests; i++)
        add_request(batch, &step->new_requests[i]);
    for (int32_t i = 0; i < step->num_rows; i++)
        extend_tables(batch, &step->rows[i]);
}

/** Slots of one row's scheduled tokens in one group. */
static void map_slots(const struct batch_row *row, int32_t group, int32_t block_size,
                      const struct scheduled_row *scheduled, int64_t *slots)
{
    for (int32_t i = 0; i < scheduled->num_scheduled_tokens; i++) {
        int32_t position = scheduled->num_computed_tokens + i;
        int32_t index = position / block_size;
        CHECK(index < row->num_blocks[group] && row->block_table[group][index] != NO_BLOCK);
        slots[i] = (int64_t)row->block_table[group][index] * block_size + position % block_size;
    }
}

static int32_t add_row(struct input_batch *batch, const struct scheduled_row *scheduled,
                       int32_t seq, int32_t first_token)
{
    const struct batch_row *row = row_at(batch, scheduled->row);
    const struct kv_cache_config *kv_cache = batch->options.kv_cache;
    int32_t start = scheduled->num_computed_tokens, count = scheduled->num_scheduled_tokens;
    int32_t num_tokens = row->num_tokens + row->num_pending;
    CHECK(row->is_used && start >= 0 && count >= 1 && start <= num_tokens - count);
    CHECK(count <= batch->counts.num_tokens - first_token);
    CHECK(!scheduled->samples || start + count == num_tokens);
    int32_t num_known = min_i32(count, row->num_tokens - start);
    CHECK(num_known >= count - 1 && row->num_pending <= 1); // each step draws one token at most
    memcpy(batch->host.token_ids + first_token, row->token_ids + start,
           (size_t)num_known * sizeof(int32_t));
    for (int32_t i = 0; i < count; i++) {
        batch->host.positions[first_token + i] = start + i;
        batch->host.token_seq[first_token + i] = seq;
        batch->host.drawn_indices[first_token + i] = -1;
    }
    if (num_known < count) {
        batch->host.token_ids[first_token + count - 1] = 0;
        batch->host.drawn_indices[first_token + count - 1] = row->drawn_index;
    }
    for (int32_t g = 0; g < kv_cache->num_groups; g++)
        map_slots(row, g, kv_cache->block_size, scheduled,
                  batch->host.slot_mapping[g] + first_token);
    batch->host.query_start[seq] = first_token;
    batch->host.seq_lens[seq] = start + count;
    return first_token + count;
}

/** The rows' block tables under one another, as far as their sequences need them. */
static void fill_tables(struct input_batch *batch, const struct scheduler_output *step,
                        int32_t group)
{
    int32_t block_size = batch->options.kv_cache->block_size;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        const struct batch_row *row = &batch->rows[step->rows[seq].row];
        int32_t count = (int32_t)ceil_div(batch->host.seq_lens[seq], block_size);
        int32_t *table = batch->options.dev->has_host_memory
                             ? batch->host.tables[group] + (int64_t)seq * batch->max_blocks
                             : batch->host.packed[group] + (int64_t)seq * batch->counts.num_columns;
        memcpy(table, row->block_table[group], (size_t)count * sizeof(int32_t));
    }
}

void input_batch_begin(struct input_batch *batch, int32_t slot, const struct step_counts *counts)
{
    const struct input_batch_options *options = &batch->options;
    CHECK(counts->num_tokens <= options->max_num_batched_tokens);
    CHECK(counts->num_logits <= options->max_num_batched_tokens);
    CHECK(counts->num_seqs <= options->max_num_seqs && counts->num_columns <= batch->max_blocks);
    batch->counts = *counts;
    batch->extra_bytes = 0;
    lay_out_tables(batch, &batch->device, batch->device_memory);
    lay_out_step(batch, counts, &batch->device, batch->device_memory + batch->table_bytes);
    batch->host = batch->device;
    if (options->dev->has_host_memory)
        return;
    batch->host_memory = batch->host_memories[slot];
    lay_out_step(batch, counts, &batch->host, batch->host_memory);
}

void *input_batch_extra(struct input_batch *batch, size_t size_bytes, const void **on_device)
{
    size_t rounded = (size_bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (rounded > EXTRA_BYTES - batch->extra_bytes)
        return NULL;
    *on_device = batch->device.extra + batch->extra_bytes;
    char *place = batch->host.extra + batch->extra_bytes;
    batch->extra_bytes += rounded;
    return place;
}

void input_batch_build(struct input_batch *batch, const struct scheduler_output *step,
                       struct forward *fwd)
{
    const struct kv_cache_config *kv_cache = batch->options.kv_cache;
    CHECK(step->num_rows >= 0 && step->num_rows <= batch->counts.num_seqs);
    int32_t num_tokens = 0, max_query_len = 0, max_seq_len = 0;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        num_tokens = add_row(batch, &step->rows[seq], seq, num_tokens);
        max_query_len = max_i32(max_query_len, step->rows[seq].num_scheduled_tokens);
        max_seq_len = max_i32(max_seq_len, batch->host.seq_lens[seq]);
    }
    CHECK(num_tokens == step->num_scheduled_tokens);
    batch->host.query_start[step->num_rows] = num_tokens;

    fwd->num_tokens = num_tokens;
    fwd->token_ids = batch->device.token_ids;
    fwd->positions = batch->device.positions;
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        fill_tables(batch, step, g);
        fwd->groups[g] = (struct cache_group_step){
            .batch =
                {
                    .num_seqs = step->num_rows,
                    .num_tokens = num_tokens,
                    .query_start = batch->device.query_start,
                    .seq_lens = batch->device.seq_lens,
                    .block_table = batch->device.tables[g],
                    .max_blocks = batch->max_blocks,
                    .token_seq = batch->device.token_seq,
                    .positions = batch->device.positions,
                    .max_query_len = max_query_len,
                    .max_seq_len = max_seq_len,
                    .max_seqs = batch->options.max_num_seqs,
                },
            .slot_mapping = batch->device.slot_mapping[g],
        };
    }
}

void input_batch_pad(struct input_batch *batch, int32_t num_seqs, struct forward *fwd)
{
    CHECK(num_seqs >= fwd->num_tokens && num_seqs == batch->counts.num_seqs &&
          num_seqs == batch->counts.num_tokens && num_seqs == batch->counts.num_logits);
    const struct step_arrays *host = &batch->host;
    for (int32_t i = fwd->num_tokens; i < num_seqs; i++) {
        host->token_ids[i] = host->positions[i] = host->seq_lens[i] = 0;
        host->token_seq[i] = host->logits_rows[i] = host->query_start[i] = i;
        host->drawn_indices[i] = -1;
        host->samples[i] =
            (struct sample_params){.top_p = 1, .repetition_penalty = 1, .num_logprobs = -1};
        for (int32_t g = 0; g < batch->options.kv_cache->num_groups; g++)
            host->slot_mapping[g][i] = -1;
    }
    host->query_start[num_seqs] = num_seqs;
    fwd->num_tokens = num_seqs;
    for (int32_t g = 0; g < batch->options.kv_cache->num_groups; g++)
        fwd->groups[g].batch.num_seqs = fwd->groups[g].batch.num_tokens = num_seqs;
}

void input_batch_upload(struct input_batch *batch, const struct forward *fwd)
{
    struct device *dev = batch->options.dev;
    if (dev->has_host_memory)
        return;
    size_t used_bytes = (size_t)(batch->host.extra - batch->host_memory) + batch->extra_bytes;
    dev->ops.upload(dev, batch->device_memory + batch->table_bytes, batch->host_memory, used_bytes);
    const struct kv_cache_config *kv_cache = batch->options.kv_cache;
    size_t row_bytes = (size_t)batch->counts.num_columns * sizeof(int32_t);
    for (int32_t g = 0; g < kv_cache->num_groups && row_bytes > 0; g++)
        dev->ops.copy_rows(dev, batch->device.tables[g],
                           (size_t)batch->max_blocks * sizeof(int32_t), batch->device.packed[g],
                           row_bytes, row_bytes, (size_t)fwd->groups[g].batch.num_seqs);
}

void input_batch_append(struct input_batch *batch, int32_t row_index, int32_t token_id)
{
    struct batch_row *row = row_at(batch, row_index);
    CHECK(row->is_used && row->num_tokens <= batch->options.max_model_len);
    row->token_ids[row->num_tokens++] = token_id;
}
