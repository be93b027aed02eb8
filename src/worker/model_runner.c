// Runs steps on one device: see model_runner.h.
//
// Only rows whose logits somebody reads go through the output matrix: the last token of a row that
// samples, and every position of a prompt whose log-probabilities were asked for. They go in slices
// of a fixed number of rows, so that a long prompt never needs its whole [tokens, vocabulary]
// matrix at once.
#include "worker/model_runner.h"

#include <omp.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "structured_output/token_trie.h"
#include "worker/constraint.h"
#include "worker/host_memory.h"
#include "worker/sampler.h"

/** A position whose logits are read: for the token after it. */
struct logits_row {
    int32_t hidden_row;              // in the step
    int32_t seq;                     // in the step
    struct token_logprobs *logprobs; // of the prompt token after it; NULL: draw a token
    int32_t token_id;                // that prompt token, or the token drawn
};

enum { SLICE_BYTES = 64 * 1024 * 1024, MIN_SLICE_ROWS = 16, MAX_SLICE_ROWS = 256 };

enum status model_runner_weight_options(struct weight_store_options *out,
                                        const struct serve_options *options,
                                        const struct model_config *model, enum weights_mode mode,
                                        struct error *err)
{
    *out = (struct weight_store_options){
        .mode = mode,
        .dir = model->path,
        .is_dummy = options->load_format == LOAD_FORMAT_DUMMY,
        .model_dtype = model->dtype,
    };
    struct str dtype = str_from(options->dtype ? options->dtype : "auto");
    out->keeps_dtype = str_eq_c(dtype, "auto");
    if (!out->keeps_dtype && dtype_parse(dtype, &out->model_dtype) != STATUS_OK)
        return error_set_field(err, STATUS_INVALID, "--dtype", "Unknown dtype: '" STR_FORMAT "'",
                               STR_ARG(dtype));
    if (out->model_dtype != DTYPE_F32 && out->model_dtype != DTYPE_F16 &&
        out->model_dtype != DTYPE_BF16)
        return error_set_field(err, STATUS_UNSUPPORTED, "--dtype",
                               "--dtype %s is not supported: expected auto, float32, float16 or "
                               "bfloat16",
                               dtype_name(out->model_dtype));
    return STATUS_OK;
}

enum status model_runner_kv_dtype(enum dtype *out, const struct serve_options *options,
                                  struct error *err)
{
    struct str name = str_from(options->kv_cache_dtype ? options->kv_cache_dtype : "auto");
    *out = DTYPE_F32; // as the activations
    if (str_eq_c(name, "auto"))
        return STATUS_OK;
    if (dtype_parse(name, out) != STATUS_OK ||
        (*out != DTYPE_F32 && *out != DTYPE_F16 && *out != DTYPE_BF16))
        return error_set_field(err, STATUS_UNSUPPORTED, "--kv-cache-dtype",
                               "--kv-cache-dtype " STR_FORMAT
                               " is not supported: expected auto, float32, float16 or bfloat16",
                               STR_ARG(name));
    return STATUS_OK;
}

static struct input_batch_options batch_options(const struct engine_config *config)
{
    return (struct input_batch_options){
        .max_num_seqs = config->max_num_seqs,
        .max_model_len = config->max_model_len,
        .max_num_batched_tokens = config->max_num_batched_tokens,
        .kv_cache = &config->kv_cache,
    };
}

/** What the sampler takes from a thread's arena: scratch for one row, and for each row that wants
 *  log-probabilities a copy of its raw logits until the step is over. */
static size_t sampler_bytes(const struct engine_config *config, int32_t num_threads)
{
    const size_t scratch_per_token = 32; // of the vocabulary: candidates, counts, flags
    size_t vocab_size = (size_t)config->model->vocab_size;
    size_t rows = (size_t)ceil_div(config->max_num_seqs, num_threads) + 1;
    return rows * (vocab_size * sizeof(float) + 1024) + vocab_size * scratch_per_token + 4096;
}

struct runner_sizes model_runner_sizes(const struct engine_config *config,
                                       const struct model *model, int32_t num_threads)
{
    int64_t tokens = config->max_num_batched_tokens;
    int64_t hidden_size = config->model->hidden_size, vocab_size = config->model->vocab_size;
    int64_t slice = SLICE_BYTES / (vocab_size * (int64_t)sizeof(float));
    slice = max_i64(MIN_SLICE_ROWS, min_i64(slice, MAX_SLICE_ROWS));
    struct runner_sizes sizes = {.logits_rows = (int32_t)min_i64(slice, tokens),
                                 .sampler_bytes = sampler_bytes(config, num_threads),
                                 .num_threads = num_threads};

    size_t layers = model->class->scratch_bytes(model, tokens);
    size_t logits = workspace_f32_bytes(sizes.logits_rows, hidden_size) +
                    workspace_f32_bytes(sizes.logits_rows, vocab_size);
    sizes.activation_bytes =
        2 * workspace_f32_bytes(tokens, hidden_size) + (layers > logits ? layers : logits);
    struct input_batch_options batch = batch_options(config);
    sizes.batch_bytes = input_batch_bytes(&batch);
    sizes.list_bytes =
        (size_t)tokens * (sizeof(struct logits_row) + sizeof(struct token_logprobs)) +
        (size_t)sizes.logits_rows * sizeof(int32_t) +
        (size_t)config->max_num_seqs * (sizeof(struct row_output) + sizeof(struct token_logprobs));
    return sizes;
}

int64_t runner_sizes_total(const struct runner_sizes *sizes)
{
    return (int64_t)(sizes->activation_bytes + sizes->batch_bytes + sizes->list_bytes +
                     (size_t)sizes->num_threads * sizes->sampler_bytes);
}

/** Makes an arena's first chunk large enough for a step, so that no step asks for more. */
static void reserve_arena(struct arena *arena, size_t size_bytes)
{
    arena_alloc(arena, size_bytes);
    arena_reset(arena);
}

/** Every layer's part of the pool: first all key arrays, slot by slot with their value arrays. */
static enum status allocate_kv_pool(struct model_runner *runner, struct error *err)
{
    const struct model_config *model = runner->config->model;
    const struct kv_cache_config *kv_cache = &runner->config->kv_cache;
    enum dtype dtype;
    TRY(model_runner_kv_dtype(&dtype, runner->config->options, err));
    size_t pool_bytes = (size_t)kv_cache->num_blocks * (size_t)kv_cache->block_bytes;
    runner->kv_pool = runner->dev.ops.alloc(&runner->dev, pool_bytes);
    if (!runner->kv_pool)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%s for the KV cache were refused",
                         byte_text((int64_t)pool_bytes).text);
    runner->caches = xcalloc((size_t)model->num_hidden_layers, sizeof(*runner->caches));
    // A slot of the pool is shared by one layer of each group: block ids keep them apart.
    size_t half_bytes = pool_bytes / (size_t)kv_cache->layers_per_group / 2;
    for (int32_t g = 0; g < kv_cache->num_groups; g++) {
        const struct kv_cache_group *group = &kv_cache->groups[g];
        for (int32_t i = 0; i < group->num_layers; i++) {
            char *keys = (char *)runner->kv_pool + 2 * (size_t)i * half_bytes;
            runner->caches[group->layers[i]] = (struct layer_cache){
                .kv =
                    {
                        .k = keys,
                        .v = keys + half_bytes,
                        .dtype = dtype,
                        .num_blocks = kv_cache->num_blocks,
                        .block_size = kv_cache->block_size,
                        .num_kv_heads = model->num_key_value_heads,
                        .head_dim = model->head_dim,
                    },
                .group = g,
            };
        }
    }
    return STATUS_OK;
}

static enum status load_model(struct model_runner *runner, struct error *err)
{
    const struct engine_config *config = runner->config;
    int64_t start_ns = clock_monotonic_ns();
    struct weight_store_options options;
    TRY(model_runner_weight_options(&options, config->options, config->model, WEIGHTS_LOAD, err));
    TRY(weight_store_open(&runner->weights, &runner->dev, &options, err));
    TRY(model_load(&runner->model, config->model, config->max_model_len, &runner->weights, err));
    runner->load_ns = clock_monotonic_ns() - start_ns;
    const struct weight_bytes *bytes = &runner->weights.bytes;
    if (bytes->copied != config->weight_bytes || bytes->mapped != config->mapped_bytes)
        return error_set(err, STATUS_INVALID,
                         "%s: the checkpoint changed between planning and loading (%s of weights "
                         "planned, %s found)",
                         config->model->path,
                         byte_text(config->weight_bytes + config->mapped_bytes).text,
                         byte_text(bytes->copied + bytes->mapped).text);
    return STATUS_OK;
}

static enum status allocate_step_memory(struct model_runner *runner, struct error *err)
{
    const struct engine_config *config = runner->config;
    runner->sizes = model_runner_sizes(config, &runner->model, runner->dev.num_threads);
    struct workspace *workspace = &runner->fwd.workspace;
    workspace->base = runner->dev.ops.alloc(&runner->dev, runner->sizes.activation_bytes);
    if (!workspace->base)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%s for a step's workspace were refused",
                         byte_text((int64_t)runner->sizes.activation_bytes).text);
    workspace->capacity_bytes = runner->sizes.activation_bytes;
    struct input_batch_options batch = batch_options(config);
    TRY(input_batch_init(&runner->batch, &batch, err));
    runner->logits_rows =
        xcalloc((size_t)config->max_num_batched_tokens, sizeof(*runner->logits_rows));
    runner->gather = xcalloc((size_t)runner->sizes.logits_rows, sizeof(*runner->gather));
    runner->outputs = xcalloc((size_t)config->max_num_seqs, sizeof(*runner->outputs));
    runner->sampled_logprobs =
        xcalloc((size_t)config->max_num_seqs, sizeof(*runner->sampled_logprobs));
    runner->thread_arenas =
        xcalloc((size_t)runner->dev.num_threads, sizeof(*runner->thread_arenas));
    for (int32_t i = 0; i < runner->dev.num_threads; i++)
        reserve_arena(&runner->thread_arenas[i], runner->sizes.sampler_bytes);
    reserve_arena(&runner->step_arena,
                  (size_t)config->max_num_batched_tokens * sizeof(struct token_logprobs));
    return STATUS_OK;
}

enum status model_runner_init(struct model_runner *runner, const struct engine_config *config,
                              int32_t num_threads, _Atomic int64_t *progress, struct error *err)
{
    *runner = (struct model_runner){.config = config, .fwd = {.progress = progress}};
    enum cpu_isa isa = CPU_ISA_AUTO;
    const char *isa_name = config->options->cpu_isa;
    if (isa_name && cpu_isa_parse(str_from(isa_name), &isa) != STATUS_OK)
        return error_set_field(err, STATUS_INVALID, "VLLM_CPU_ISA",
                               "VLLM_CPU_ISA is \"%s\": no such instruction set", isa_name);
    enum status status = cpu_device_init(&runner->dev, isa, num_threads, err);
    if (status == STATUS_OK)
        status = load_model(runner, err);
    if (status == STATUS_OK)
        status = allocate_step_memory(runner, err);
    if (status == STATUS_OK)
        status = allocate_kv_pool(runner, err);
    if (status != STATUS_OK) {
        model_runner_deinit(runner);
        return status;
    }
    runner->fwd.dev = &runner->dev;
    runner->fwd.caches = runner->caches;
    return STATUS_OK;
}

void model_runner_deinit(struct model_runner *runner)
{
    if (!runner)
        return;
    struct device *dev = &runner->dev;
    if (runner->kv_pool)
        dev->ops.free(dev, runner->kv_pool);
    if (runner->fwd.workspace.base)
        dev->ops.free(dev, runner->fwd.workspace.base);
    for (int32_t i = 0; runner->thread_arenas && i < dev->num_threads; i++)
        arena_deinit(&runner->thread_arenas[i]);
    free(runner->thread_arenas);
    arena_deinit(&runner->step_arena);
    free(runner->caches);
    free(runner->logits_rows);
    free(runner->gather);
    free(runner->outputs);
    free(runner->sampled_logprobs);
    token_trie_destroy(runner->tokens);
    input_batch_deinit(&runner->batch);
    weight_store_close(&runner->weights);
    device_deinit(dev);
    *runner = (struct model_runner){0};
}

/** Lists the prompt positions whose log-probabilities this step can tell: position p's come from
 *  the logits at p - 1, so a chunk scores one token past its own end and chunks leave no hole. */
static void list_prompt_logprobs(struct model_runner *runner, const struct batch_row *row,
                                 const struct scheduled_row *scheduled, int32_t seq)
{
    int32_t start = scheduled->num_computed_tokens;
    int32_t end = min_i32(start + scheduled->num_scheduled_tokens, row->num_prompt_tokens - 1);
    if (row->sampling.num_prompt_logprobs < 0 || end <= start)
        return;
    struct row_output *output = &runner->outputs[seq];
    struct token_logprobs *logprobs =
        arena_calloc(&runner->step_arena, (size_t)(end - start), sizeof(*logprobs));
    output->first_prompt_logprob = start + 1;
    output->num_prompt_logprobs = end - start;
    output->prompt_logprobs = logprobs;
    for (int32_t position = start; position < end; position++)
        runner->logits_rows[runner->num_logits_rows++] = (struct logits_row){
            .hidden_row = runner->batch.query_start[seq] + position - start,
            .seq = seq,
            .logprobs = &logprobs[position - start],
            .token_id = row->token_ids[position + 1],
        };
}

/** Starts the step's outputs and lists the positions whose logits are read. */
static void list_logits_rows(struct model_runner *runner, const struct scheduler_output *step)
{
    runner->num_logits_rows = 0;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        const struct scheduled_row *scheduled = &step->rows[seq];
        runner->outputs[seq] = (struct row_output){.row = scheduled->row, .token_id = -1};
        list_prompt_logprobs(runner, &runner->batch.rows[scheduled->row], scheduled, seq);
        if (scheduled->samples)
            runner->logits_rows[runner->num_logits_rows++] = (struct logits_row){
                .hidden_row = runner->batch.query_start[seq + 1] - 1,
                .seq = seq,
            };
    }
}

/** Turns one row of logits into what was asked of it. Called by several threads at once, each with
 *  rows and an arena of its own. */
static void use_logits(struct model_runner *runner, const struct scheduler_output *step,
                       struct logits_row *logits_row, float *logits, struct arena *arena)
{
    const struct batch_row *row = &runner->batch.rows[step->rows[logits_row->seq].row];
    int32_t vocab_size = runner->config->model->vocab_size;
    if (logits_row->logprobs) {
        sampler_logprobs(logits, vocab_size, logits_row->token_id,
                         row->sampling.num_prompt_logprobs, logits_row->logprobs, arena);
        return;
    }
    struct sampler_history history = {row->token_ids, row->num_prompt_tokens, row->num_tokens,
                                      NULL};
    struct token_constraint constraint;
    if (row->sampling.num_automaton_words > 0) {
        if (!constraint_find(&constraint, runner->tokens, row, vocab_size, arena))
            return; // no token: the request fails
        history.constraint = &constraint;
    }
    struct row_output *output = &runner->outputs[logits_row->seq];
    struct token_logprobs *logprobs = &runner->sampled_logprobs[logits_row->seq];
    output->token_id =
        sampler_sample(logits, vocab_size, &row->sampling, &history, logprobs, arena);
    if (row->sampling.num_logprobs >= 0 && output->token_id >= 0)
        output->logprobs = logprobs;
}

/** Computes and uses the logits of up to a slice of rows, starting with `first`. */
static void run_slice(struct model_runner *runner, const struct scheduler_output *step,
                      struct tensor hidden, int32_t first, int32_t count)
{
    struct forward *fwd = &runner->fwd;
    int64_t vocab_size = runner->config->model->vocab_size;
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor gathered = workspace_f32(&fwd->workspace, count, hidden.shape[1]);
    struct tensor logits = workspace_f32(&fwd->workspace, count, vocab_size);
    for (int32_t i = 0; i < count; i++)
        runner->gather[i] = runner->logits_rows[first + i].hidden_row;
    op_gather_rows(fwd->dev, gathered, hidden, runner->gather);
    runner->model.class->compute_logits(&runner->model, fwd, logits, gathered);

    // Always the whole team: OpenMP ends threads that a smaller one leaves idle.
#pragma omp parallel for schedule(static) num_threads(runner->dev.num_threads) if (count > 1)
    for (int32_t i = 0; i < count; i++)
        use_logits(runner, step, &runner->logits_rows[first + i],
                   (float *)logits.data + i * vocab_size,
                   &runner->thread_arenas[omp_get_thread_num()]);
    workspace_release(&fwd->workspace, mark);
    if (fwd->progress)
        atomic_fetch_add_explicit(fwd->progress, 1, memory_order_relaxed);
}

static void forget_last_step(struct model_runner *runner)
{
    arena_reset(&runner->step_arena);
    for (int32_t i = 0; i < runner->dev.num_threads; i++)
        arena_reset(&runner->thread_arenas[i]);
    arena_reset(&runner->dev.scratch);
}

static void run_forward(struct model_runner *runner, const struct scheduler_output *step)
{
    struct forward *fwd = &runner->fwd;
    int64_t hidden_size = runner->config->model->hidden_size;
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor hidden = workspace_f32(&fwd->workspace, fwd->num_tokens, hidden_size);
    struct tensor residual = workspace_f32(&fwd->workspace, fwd->num_tokens, hidden_size);
    runner->model.class->embed(&runner->model, fwd, residual);
    runner->model.class->forward(&runner->model, fwd, hidden, residual);
    for (int32_t first = 0; first < runner->num_logits_rows; first += runner->sizes.logits_rows)
        run_slice(runner, step, hidden, first,
                  min_i32(runner->sizes.logits_rows, runner->num_logits_rows - first));
    workspace_release(&fwd->workspace, mark);
}

/** The bytes of all tokens, read when the first request needs them: a start that nobody asks for
 *  structured output does not pay for it. */
static void load_tokens(struct model_runner *runner)
{
    const struct serve_options *o = runner->config->options;
    struct error err = {0};
    int64_t start_ns = clock_monotonic_ns();
    if (token_trie_load(&runner->tokens, o->tokenizer ? o->tokenizer : o->model, &err) !=
        STATUS_OK) {
        log_error("structured output is not possible: %s", err.message);
        runner->tokens_failed = true;
        return;
    }
    log_info("Structured output: %d tokens by their bytes, %.1f MiB, read in %.1f ms",
             token_trie_num_tokens(runner->tokens),
             (double)token_trie_bytes(runner->tokens) / (1024 * 1024),
             (double)(clock_monotonic_ns() - start_ns) / 1e6);
}

/** Brings the automata of requests that come (or come back) to where their outputs have led. */
static void start_automata(struct model_runner *runner, const struct scheduler_output *step)
{
    for (int32_t i = 0; i < step->num_new_requests; i++) {
        struct batch_row *row = &runner->batch.rows[step->new_requests[i].row];
        if (row->sampling.num_automaton_words == 0)
            continue;
        if (!runner->tokens && !runner->tokens_failed)
            load_tokens(runner);
        constraint_advance(row, runner->tokens, row->num_prompt_tokens);
    }
}

/** A drawn token becomes part of its row. */
static void append_token(struct model_runner *runner, int32_t row_index, int32_t token_id)
{
    struct batch_row *row = &runner->batch.rows[row_index];
    input_batch_append(&runner->batch, row_index, token_id);
    if (row->sampling.num_automaton_words > 0)
        constraint_advance(row, runner->tokens, row->num_tokens - 1);
}

enum status model_runner_execute(struct model_runner *runner, const struct scheduler_output *step,
                                 struct model_runner_output *result, struct error *err)
{
    forget_last_step(runner);
    input_batch_update(&runner->batch, step);
    start_automata(runner, step);
    input_batch_build(&runner->batch, step, &runner->fwd);
    list_logits_rows(runner, step);
    if (runner->fwd.num_tokens > 0)
        run_forward(runner, step);
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        if (runner->outputs[seq].token_id >= 0)
            append_token(runner, step->rows[seq].row, runner->outputs[seq].token_id);
    }
    *result = (struct model_runner_output){step->num_rows, runner->outputs};
    return runner->dev.ops.synchronize(&runner->dev, err);
}
