// Runs steps on one device: see model_runner.h.
//
// Only rows whose logits somebody reads go through the output matrix: the last token of a row that
// samples, and every position of a prompt whose log-probabilities were asked for. They go in slices
// of a fixed number of rows, so that a long prompt never needs its whole [tokens, vocabulary]
// matrix at once.
//
// A device with memory of its own draws tokens itself where it can; of other rows the logits come
// to the host. Steps that only decode and only draw so are recorded once for each of a ladder of
// sizes, and replayed.
#include "worker/model_runner.h"

#include <omp.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/constraint.h"
#include "worker/sampler.h"

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
            .hidden_row = runner->batch.host.query_start[seq] + position - start,
            .seq = seq,
            .logprobs = &logprobs[position - start],
            .token_id = row->token_ids[position + 1],
        };
}

/** Whether the device can draw the row's next token: by what is left of the sampler when nothing
 *  changes the logits and nobody asks for log-probabilities. */
static bool is_plain(const struct batch_row *row)
{
    const struct sampling_params *p = &row->sampling;
    return p->num_logprobs < 0 && p->num_logit_bias == 0 && p->num_allowed_token_ids == 0 &&
           p->num_bad_word_ints == 0 && p->num_automaton_words == 0 &&
           p->repetition_penalty == 1.0f && p->frequency_penalty == 0.0f &&
           p->presence_penalty == 0.0f && row->num_tokens - row->num_prompt_tokens >= p->min_tokens;
}

/** Tells the device which rows' logits are read, and how tokens are drawn from them. */
static void fill_samples(struct model_runner *runner, const struct scheduler_output *step)
{
    const struct step_arrays *arrays = &runner->batch.host;
    const bool can_draw = runner->dev.ops.sample &&
                          runner->config->model->vocab_size <= runner->dev.max_sampled_vocab;
    runner->draws_on_device = can_draw;
    for (int32_t i = 0; i < runner->num_logits_rows; i++) {
        struct logits_row *logits_row = &runner->logits_rows[i];
        const struct batch_row *row = &runner->batch.rows[step->rows[logits_row->seq].row];
        arrays->logits_rows[i] = logits_row->hidden_row;
        logits_row->is_plain = can_draw && !logits_row->logprobs && is_plain(row);
        runner->draws_on_device &= logits_row->is_plain;
        arrays->samples[i] = (struct sample_params){
            .temperature = row->sampling.temperature,
            .top_p = row->sampling.top_p,
            .min_p = row->sampling.min_p,
            .repetition_penalty = 1,
            .seed = row->sampling.seed,
            .top_k = row->sampling.top_k,
            .num_logprobs = -1,
            .num_prompt_tokens = row->num_prompt_tokens,
            .num_tokens = row->num_tokens,
        };
    }
}

/** Starts the step's outputs and lists the positions whose logits are read. */
static void list_logits_rows(struct model_runner *runner, const struct scheduler_output *step)
{
    runner->num_logits_rows = 0;
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        const struct scheduled_row *scheduled = &step->rows[seq];
        runner->outputs[seq] =
            (struct row_output){.row = scheduled->row, .token_id = TOKEN_ID_NONE};
        list_prompt_logprobs(runner, &runner->batch.rows[scheduled->row], scheduled, seq);
        if (scheduled->samples && runner->pooler.options.type == POOLING_NONE)
            runner->logits_rows[runner->num_logits_rows++] = (struct logits_row){
                .hidden_row = runner->batch.host.query_start[seq + 1] - 1,
                .seq = seq,
            };
    }
    fill_samples(runner, step);
}

/** Turns one row of logits into what was asked of it. Called by several threads at once, each with
 *  rows and an arena of its own. */
static void use_logits(struct model_runner *runner, const struct logits_row *logits_row,
                       float *logits, struct arena *arena)
{
    const struct batch_row *row = &runner->batch.rows[runner->step->rows[logits_row->seq].row];
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
        if (!constraint_find(&constraint, runner->tokens, row, logits_row->mask, vocab_size,
                             arena)) {
            if (runner->tokens)
                runner->outputs[logits_row->seq].token_id = TOKEN_ID_FORBIDDEN;
            return;
        }
        history.constraint = &constraint;
    }
    struct row_output *output = &runner->outputs[logits_row->seq];
    struct token_logprobs *logprobs = &runner->sampled_logprobs[logits_row->seq];
    output->token_id =
        sampler_sample(logits, vocab_size, &row->sampling, &history, logprobs, arena);
    if (row->sampling.num_logprobs >= 0 && output->token_id >= 0)
        output->logprobs = logprobs;
}

/** The same for `count` rows of logits in host memory. */
static void use_rows(struct model_runner *runner, const struct logits_row *const *rows,
                     float *logits, int32_t count)
{
    int64_t vocab_size = runner->config->model->vocab_size;
    // Always the whole team: OpenMP ends threads that a smaller one leaves idle.
#pragma omp parallel for schedule(static) num_threads(runner->dev.num_threads) if (count > 1)
    for (int32_t i = 0; i < count; i++)
        use_logits(runner, rows[i], logits + i * vocab_size,
                   &runner->thread_arenas[omp_get_thread_num()]);
}

/** Fetches those of a slice's rows that the device cannot finish, some at a time. */
static void use_on_host(struct model_runner *runner, struct tensor logits, int32_t first)
{
    struct device *dev = &runner->dev;
    const struct logits_row *rows[MAX_HOST_LOGITS];
    int64_t vocab_size = logits.shape[1];
    int32_t count = (int32_t)logits.shape[0], num_fetched = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!runner->logits_rows[first + i].is_plain) {
            rows[num_fetched] = &runner->logits_rows[first + i];
            dev->ops.download(dev, runner->host_logits + num_fetched * vocab_size,
                              (float *)logits.data + i * vocab_size,
                              (size_t)vocab_size * sizeof(float));
            num_fetched++;
        }
        if (num_fetched == MAX_HOST_LOGITS || (i == count - 1 && num_fetched > 0)) {
            (void)dev->ops.synchronize(dev, NULL); // a failure shows again when the step ends
            use_rows(runner, rows, runner->host_logits, num_fetched);
            num_fetched = 0;
        }
    }
}

/** Computes and uses the logits of up to a slice of rows, starting with `first`. */
static void run_slice(struct model_runner *runner, struct tensor hidden, int32_t first,
                      int32_t count)
{
    struct forward *fwd = &runner->fwd;
    struct device *dev = fwd->dev;
    const struct step_arrays *arrays = &runner->batch.device;
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor gathered =
        workspace_tensor(&fwd->workspace, dev->activation_dtype, count, hidden.shape[1]);
    struct tensor logits =
        workspace_tensor(&fwd->workspace, DTYPE_F32, count, runner->config->model->vocab_size);
    op_gather_rows(dev, gathered, hidden, arrays->logits_rows + first);
    runner->model.class->compute_logits(&runner->model, fwd, logits, gathered);
    if (dev->has_host_memory) {
        const struct logits_row *rows[MAX_SLICE_ROWS];
        for (int32_t i = 0; i < count; i++)
            rows[i] = &runner->logits_rows[first + i];
        use_rows(runner, rows, logits.data, count);
    } else {
        if (dev->ops.sample && logits.shape[1] <= dev->max_sampled_vocab)
            op_sample(dev, runner->drawn_on_device + first, logits, arrays->samples + first);
        if (!runner->draws_on_device)
            use_on_host(runner, logits, first);
    }
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

/** From the step's arrays on the device to drawn tokens. */
static void run_forward(struct model_runner *runner)
{
    struct forward *fwd = &runner->fwd;
    int64_t hidden_size = runner->config->model->hidden_size;
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor hidden = forward_activation(fwd, hidden_size);
    struct tensor residual = forward_activation(fwd, hidden_size);
    runner->model.class->embed(&runner->model, fwd, residual);
    runner->model.class->forward(&runner->model, fwd, hidden, residual);
    pooler_take(&runner->pooler, hidden, &runner->batch, runner->step);
    for (int32_t first = 0; first < runner->num_logits_rows; first += runner->sizes.logits_rows)
        run_slice(runner, hidden, first,
                  min_i32(runner->sizes.logits_rows, runner->num_logits_rows - first));
    workspace_release(&fwd->workspace, mark);
}

/** The recording for this step: of the smallest size that holds it. -1: none. */
static int32_t find_graph(const struct model_runner *runner)
{
    const struct step_graphs *graphs = &runner->graphs;
    const struct attention_batch *batch = &runner->fwd.groups[0].batch;
    if (batch->max_query_len != 1 || !runner->draws_on_device ||
        runner->num_logits_rows != batch->num_seqs)
        return -1;
    for (int32_t i = 0; i < graphs->num; i++) {
        if (graphs->sizes[i] >= batch->num_seqs)
            return i;
    }
    return -1;
}

static const char *tokenizer_path(const struct model_runner *runner)
{
    const struct serve_options *o = runner->config->options;
    return o->tokenizer ? o->tokenizer : o->model;
}

enum tokens_state model_runner_poll_tokens(struct model_runner *runner)
{
    return token_loader_poll(&runner->token_loader, tokenizer_path(runner),
                             runner->config->model->vocab_size);
}

/** Rows that finished, or were preempted, let go of their automata. */
static void end_automata(struct model_runner *runner, const struct scheduler_output *step)
{
    for (int32_t i = 0; i < step->num_finished_rows; i++) {
        struct batch_row *row = &runner->batch.rows[step->finished_rows[i]];
        if (row->automaton_id != 0)
            constraint_store_release(&runner->constraints, row->automaton_id);
        row->automaton_id = 0;
    }
}

/** Brings the automata of requests that come (or come back) to where their outputs have led. */
static void start_automata(struct model_runner *runner, const struct scheduler_output *step)
{
    for (int32_t i = 0; i < step->num_new_requests; i++) {
        struct batch_row *row = &runner->batch.rows[step->new_requests[i].row];
        struct sampling_params *p = &row->sampling;
        if (p->num_automaton_words == 0)
            continue;
        p->automaton = constraint_store_acquire(&runner->constraints, p->automaton,
                                                p->num_automaton_words, &row->automaton_id);
        runner->tokens = token_loader_wait(&runner->token_loader, tokenizer_path(runner),
                                           runner->config->model->vocab_size);
        constraint_advance(row, runner->tokens, row->num_prompt_tokens);
    }
}

/** Finds the masks of the rows that draw under an automaton, and makes those that are new. */
static void find_masks(struct model_runner *runner, const struct scheduler_output *step)
{
    struct stored_mask *made[NUM_STORED_MASKS];
    const uint32_t *automata[NUM_STORED_MASKS]; // of made
    int32_t num_made = 0;
    constraint_store_begin_step(&runner->constraints);
    for (int32_t i = 0; runner->tokens && i < runner->num_logits_rows; i++) {
        struct logits_row *logits_row = &runner->logits_rows[i];
        const struct batch_row *row = &runner->batch.rows[step->rows[logits_row->seq].row];
        if (logits_row->logprobs || row->automaton_id == 0 ||
            row->automaton_state == AUTOMATON_DEAD)
            continue;
        int64_t num_known = runner->constraints.num_made;
        struct stored_mask *mask =
            constraint_store_find(&runner->constraints, row->automaton_id, row->automaton_state);
        logits_row->mask = mask;
        if (runner->constraints.num_made > num_known) {
            automata[num_made] = row->sampling.automaton;
            made[num_made++] = mask;
        }
    }
#pragma omp parallel for schedule(dynamic) num_threads(runner->dev.num_threads) if (num_made > 1)
    for (int32_t i = 0; i < num_made; i++)
        constraint_store_make(&runner->constraints, made[i], automata[i], runner->tokens);
}

/** A drawn token becomes part of its row. */
static void append_token(struct model_runner *runner, int32_t row_index, int32_t token_id)
{
    struct batch_row *row = &runner->batch.rows[row_index];
    input_batch_append(&runner->batch, row_index, token_id);
    if (row->sampling.num_automaton_words > 0)
        constraint_advance(row, runner->tokens, row->num_tokens - 1);
}

void model_runner_submit(struct model_runner *runner, const struct scheduler_output *step)
{
    struct device *dev = &runner->dev;
    runner->step = step;
    forget_last_step(runner);
    end_automata(runner, step);
    input_batch_update(&runner->batch, step);
    start_automata(runner, step);
    input_batch_build(&runner->batch, step, &runner->fwd);
    list_logits_rows(runner, step);
    find_masks(runner, step);
    if (runner->fwd.num_tokens == 0)
        return;
    int32_t graph = find_graph(runner);
    if (graph >= 0)
        input_batch_pad(&runner->batch, runner->graphs.sizes[graph], &runner->fwd);
    input_batch_upload(&runner->batch, &runner->fwd);
    if (graph >= 0)
        dev->ops.replay(dev, runner->graphs.recordings[graph]);
    else
        run_forward(runner);
    if (dev->ops.sample && runner->num_logits_rows > 0)
        dev->ops.download(dev, runner->drawn, runner->drawn_on_device,
                          (size_t)runner->num_logits_rows * sizeof(int32_t));
}

enum status model_runner_collect(struct model_runner *runner, struct model_runner_output *result,
                                 struct error *err)
{
    const struct scheduler_output *step = runner->step;
    TRY(runner->dev.ops.synchronize(&runner->dev, err));
    for (int32_t i = 0; i < runner->num_logits_rows; i++) {
        const struct logits_row *row = &runner->logits_rows[i];
        if (row->is_plain)
            runner->outputs[row->seq].token_id = runner->drawn[i];
    }
    for (int32_t seq = 0; seq < step->num_rows; seq++) {
        if (runner->outputs[seq].token_id >= 0)
            append_token(runner, step->rows[seq].row, runner->outputs[seq].token_id);
    }
    pooler_finish(&runner->pooler, &runner->batch, step, runner->outputs);
    *result = (struct model_runner_output){step->num_rows, runner->outputs};
    return STATUS_OK;
}

// ---- Recordings ----------------------------------------------------------------------------

/** Sizes as vLLM has them: dense where a few sequences more cost most. */
static int32_t next_graph_size(int32_t size)
{
    if (size < 4)
        return size < 1 ? 1 : 2 * size;
    return size < 8 ? 8 : size < 256 ? size + 8 : size + 16;
}

int32_t step_graphs_max_size(const struct engine_config *config)
{
    enum { DEFAULT_MAX_SIZE = 512 };
    int32_t wanted = config->options->max_cudagraph_capture_size;
    bool is_pooling = config->pooling.type != POOLING_NONE;
    if (config->device == DEVICE_CPU || config->options->enforce_eager || is_pooling)
        return 0;
    if (wanted < 0)
        wanted = DEFAULT_MAX_SIZE;
    return min_i32(wanted, config->max_num_seqs);
}

int32_t step_graphs_count(const struct engine_config *config)
{
    int32_t max_size = step_graphs_max_size(config), count = 0;
    for (int32_t size = 1; size <= max_size && count < MAX_GRAPHS; size = next_graph_size(size))
        count++;
    return count;
}

/** Sets a step of `size` sequences up that decode nothing. */
static void set_up_empty_step(struct model_runner *runner, int32_t size)
{
    static const struct scheduler_output nothing = {0};
    input_batch_build(&runner->batch, &nothing, &runner->fwd);
    input_batch_pad(&runner->batch, size, &runner->fwd);
    for (int32_t g = 0; g < runner->config->kv_cache.num_groups; g++) {
        runner->fwd.groups[g].batch.max_query_len = 1;
        runner->fwd.groups[g].batch.max_seq_len = runner->config->max_model_len;
    }
    runner->num_logits_rows = size;
    runner->draws_on_device = true;
    input_batch_upload(&runner->batch, &runner->fwd);
}

enum status step_graphs_record(struct model_runner *runner, struct error *err)
{
    struct step_graphs *graphs = &runner->graphs;
    struct device *dev = &runner->dev;
    int32_t count =
        dev->ops.record_begin && runner->config->model->vocab_size <= dev->max_sampled_vocab
            ? step_graphs_count(runner->config)
            : 0;
    int64_t start_ns = clock_monotonic_ns();
    for (int32_t i = 0, size = 1; i < count; i++, size = next_graph_size(size)) {
        graphs->sizes[i] = size;
        set_up_empty_step(runner, size);
        run_forward(runner); // so that nothing is left to be chosen or allocated
        dev->ops.record_begin(dev);
        run_forward(runner);
        graphs->recordings[i] = dev->ops.record_end(dev);
        graphs->num = i + 1;
        TRY(dev->ops.synchronize(dev, err));
    }
    if (count > 0)
        log_info("Graph capturing finished in %.2f secs: %d CUDA graphs for up to %d requests",
                 (double)(clock_monotonic_ns() - start_ns) / 1e9, count, graphs->sizes[count - 1]);
    return STATUS_OK;
}

void step_graphs_free(struct model_runner *runner)
{
    for (int32_t i = 0; i < runner->graphs.num; i++) {
        if (runner->graphs.recordings[i])
            runner->dev.ops.free_recording(&runner->dev, runner->graphs.recordings[i]);
    }
    runner->graphs.num = 0;
}
