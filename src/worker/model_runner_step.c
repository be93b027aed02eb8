// Runs steps on one device: see model_runner.h.
//
// Only rows whose logits somebody reads go through the output matrix: the last token of a row that
// samples, and every position of a prompt whose log-probabilities were asked for. They go in slices
// of a fixed number of rows, so that a long prompt never needs its whole [tokens, vocabulary]
// matrix at once.
//
// A device with memory of its own draws tokens itself where it can; of other rows the logits come
// to the host. Where it draws all of a step's, the next step can be submitted before they are
// known: it reads them on the device, and the host hears of them when the step is collected, or
// earlier when the next one's masks depend on them. The one thing the host waits for is the mark
// behind the step's last copy. Steps that only decode are recorded once for each of a ladder of
// sizes, and replayed.
#include "worker/model_runner.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/constraint.h"

/** Fetches those of a slice's rows that the device cannot finish, some at a time. */
static void use_on_host(struct model_runner *runner, struct runner_step *own, struct tensor logits,
                        int32_t first)
{
    struct device *dev = &runner->dev;
    const struct logits_row *rows[MAX_HOST_LOGITS];
    int64_t vocab_size = logits.shape[1];
    int32_t count = (int32_t)logits.shape[0], num_fetched = 0;
    for (int32_t i = 0; i < count; i++) {
        if (own->logits_rows[first + i].place == DRAW_ON_HOST) {
            rows[num_fetched] = &own->logits_rows[first + i];
            dev->ops.download(dev, runner->host_logits + num_fetched * vocab_size,
                              (float *)logits.data + i * vocab_size,
                              (size_t)vocab_size * sizeof(float));
            num_fetched++;
        }
        if (num_fetched == MAX_HOST_LOGITS || (i == count - 1 && num_fetched > 0)) {
            if (own->status == STATUS_OK)
                own->status = dev->ops.synchronize(dev, &own->err);
            step_rows_use(runner, own, rows, runner->host_logits, num_fetched);
            num_fetched = 0;
        }
    }
}

static void give_logprobs(struct model_runner *runner, struct tensor logits)
{
    const struct step_arrays *arrays = &runner->batch.device;
    op_sample_logprobs(&runner->dev, &runner->logprobs, runner->drawn, logits, arrays->samples);
}

/** Computes and uses the logits of up to a slice of rows, starting with `first`. */
static void run_slice(struct model_runner *runner, struct runner_step *own, struct tensor hidden,
                      int32_t first, int32_t count)
{
    struct forward *fwd = &runner->fwd;
    struct device *dev = fwd->dev;
    const struct step_arrays *arrays = &runner->batch.device;
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor gathered =
        workspace_tensor(&fwd->workspace, dev->activation_dtype, count, hidden.shape[1]);
    struct tensor logits =
        workspace_tensor(&fwd->workspace, DTYPE_F32, count, runner->config->model->vocab_size);
    runner->last_logits = logits;
    op_gather_rows(dev, gathered, hidden, arrays->logits_rows + first);
    runner->model.class->compute_logits(&runner->model, fwd, logits, gathered);
    if (dev->has_host_memory) {
        const struct logits_row *rows[MAX_SLICE_ROWS];
        for (int32_t i = 0; i < count; i++)
            rows[i] = &own->logits_rows[first + i];
        step_rows_use(runner, own, rows, logits.data, count);
    } else {
        if (dev->ops.sample && logits.shape[1] <= dev->max_sampled_vocab)
            op_sample(dev, runner->drawn + first, logits, arrays->samples + first);
        if (!own->draws_on_device)
            use_on_host(runner, own, logits, first);
    }
    workspace_release(&fwd->workspace, mark);
    if (fwd->progress)
        atomic_fetch_add_explicit(fwd->progress, 1, memory_order_relaxed);
}

static void forget_last_result(struct model_runner *runner, struct runner_step *own)
{
    arena_reset(&own->arena);
    for (int32_t i = 0; i < runner->dev.num_threads; i++)
        arena_reset(&own->thread_arenas[i]);
    arena_reset(&runner->dev.scratch);
    own->status = STATUS_OK;
    own->is_settled = false;
}

void model_runner_forward(struct model_runner *runner, struct runner_step *own)
{
    struct forward *fwd = &runner->fwd;
    int64_t hidden_size = runner->config->model->hidden_size;
    size_t mark = workspace_mark(&fwd->workspace);
    struct tensor hidden = forward_activation(fwd, hidden_size);
    struct tensor residual = forward_activation(fwd, hidden_size);
    const struct step_arrays *arrays = &runner->batch.device;
    if (fwd->dev->ops.take_tokens)
        op_take_tokens(fwd->dev, arrays->token_ids, arrays->drawn_indices, runner->drawn,
                       fwd->num_tokens);
    runner->model.class->embed(&runner->model, fwd, residual);
    runner->model.class->forward(&runner->model, fwd, hidden, residual);
    pooler_take(&runner->pooler, hidden, &runner->batch, own->step);
    for (int32_t first = 0; first < own->num_logits_rows; first += runner->sizes.logits_rows)
        run_slice(runner, own, hidden, first,
                  min_i32(runner->sizes.logits_rows, own->num_logits_rows - first));
    workspace_release(&fwd->workspace, mark);
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

/** A drawn token becomes part of its row. A draw that failed ends its request, but one more step
 *  may have been decided by then: that one reads token 0. */
static void append_token(struct model_runner *runner, const struct logits_row *logits_row,
                         int32_t token_id)
{
    struct batch_row *row = &runner->batch.rows[logits_row->batch_row];
    if (!row->is_used || row->occupant != logits_row->occupant)
        return; // its request has left
    row->num_pending--;
    input_batch_append(&runner->batch, logits_row->batch_row, max_i32(token_id, 0));
    if (row->sampling.num_automaton_words > 0)
        constraint_advance(row, runner->tokens, row->num_tokens - 1);
}

/** Waits for a step's tokens and makes them part of the batch. */
static void settle(struct model_runner *runner, struct runner_step *own)
{
    struct device *dev = &runner->dev;
    int32_t slot = (int32_t)(own - runner->steps);
    if (own->status == STATUS_OK)
        own->status = dev->ops.wait_mark(dev, slot, &own->err);
    own->is_settled = true;
    for (int32_t i = 0; i < own->num_logits_rows; i++) {
        const struct logits_row *row = &own->logits_rows[i];
        if (row->logprobs)
            continue;
        if (row->place == DRAW_ON_DEVICE)
            step_rows_take(runner, own, i);
        append_token(runner, row, own->outputs[row->seq].token_id);
    }
}

/** The step submitted before this one, while its tokens are unknown. */
static struct runner_step *unsettled_before(struct model_runner *runner)
{
    struct runner_step *before = runner->num_submitted > 0 ? runner->now : NULL;
    return before && !before->is_settled ? before : NULL;
}

static void download_results(struct model_runner *runner, struct runner_step *own)
{
    struct device *dev = &runner->dev;
    size_t count = (size_t)own->num_logits_rows;
    if (!dev->ops.sample || count == 0)
        return;
    dev->ops.download(dev, own->drawn, runner->drawn, count * sizeof(int32_t));
    if (!own->wants_logprobs)
        return;
    size_t entries = count * (1 + MAX_DEVICE_LOGPROBS);
    dev->ops.download(dev, own->logprobs.token_ids, runner->logprobs.token_ids,
                      entries * sizeof(int32_t));
    dev->ops.download(dev, own->logprobs.logprobs, runner->logprobs.logprobs,
                      entries * sizeof(float));
    dev->ops.download(dev, own->logprobs.ranks, runner->logprobs.ranks, count * sizeof(int32_t));
}

/** Whether all rows decode one token, and draw one. */
static bool only_decodes(const struct scheduler_output *step)
{
    if (step->num_rows == 0 || step->num_scheduled_tokens != step->num_rows)
        return false;
    for (int32_t i = 0; i < step->num_rows; i++) {
        if (!step->rows[i].samples)
            return false;
    }
    return true;
}

/** The size of the step's arrays; `*graph` is the recording for it, or -1. */
static struct step_counts count_step(const struct model_runner *runner,
                                     const struct scheduler_output *step, int32_t *graph)
{
    int32_t max_seq_len = 0;
    for (int32_t i = 0; i < step->num_rows; i++)
        max_seq_len = max_i32(max_seq_len, step->rows[i].num_computed_tokens +
                                               step->rows[i].num_scheduled_tokens);
    int32_t block_size = runner->config->kv_cache.block_size;
    struct step_counts counts = {.num_tokens = step->num_scheduled_tokens,
                                 .num_seqs = step->num_rows,
                                 .num_logits = step_rows_count(runner, step),
                                 .num_columns = (int32_t)ceil_div(max_seq_len, block_size)};
    *graph = -1;
    if (only_decodes(step) && counts.num_logits == counts.num_seqs)
        *graph = step_graphs_find(&runner->graphs, step->num_rows);
    if (*graph >= 0)
        counts.num_tokens = counts.num_seqs = counts.num_logits = runner->graphs.sizes[*graph];
    return counts;
}

/** Launches the step whose arrays are filled. */
static void launch(struct model_runner *runner, struct runner_step *own, int32_t graph)
{
    struct device *dev = &runner->dev;
    bool replays = graph >= 0 && own->draws_on_device;
    if (graph >= 0)
        input_batch_pad(&runner->batch, runner->graphs.sizes[graph], &runner->fwd);
    input_batch_upload(&runner->batch, &runner->fwd);
    if (replays) {
        dev->ops.replay(dev, runner->graphs.recordings[graph]);
        runner->last_logits = runner->graphs.logits[graph];
    } else {
        model_runner_forward(runner, own);
    }
    if (own->wants_logprobs) {
        CHECK(own->num_logits_rows <= runner->sizes.logits_rows);
        runner->last_logits.shape[0] = own->num_logits_rows;
        give_logprobs(runner, runner->last_logits);
    }
    download_results(runner, own);
}

void model_runner_submit(struct model_runner *runner, const struct scheduler_output *step)
{
    struct device *dev = &runner->dev;
    CHECK(runner->num_submitted - runner->num_collected < runner->sizes.num_steps);
    struct runner_step *before = unsettled_before(runner);
    int32_t slot = (int32_t)(runner->num_submitted++ % runner->sizes.num_steps), graph;
    struct runner_step *own = runner->now = &runner->steps[slot];
    own->step = step;
    forget_last_result(runner, own);
    end_automata(runner, step);
    input_batch_update(&runner->batch, step);
    start_automata(runner, step);
    if (before && step_rows_need_history(runner, step))
        settle(runner, before);
    const struct step_counts counts = count_step(runner, step, &graph);
    input_batch_begin(&runner->batch, slot, &counts);
    input_batch_build(&runner->batch, step, &runner->fwd);
    step_rows_list(runner, own);
    step_rows_fill(runner, own);
    // Where the host draws it must know the rows' histories. What the device reads stays as it is.
    if (!own->draws_on_device && before && !before->is_settled)
        settle(runner, before);
    for (int32_t i = 0; i < own->num_logits_rows; i++) {
        const struct logits_row *row = &own->logits_rows[i];
        if (row->logprobs)
            continue;
        runner->batch.rows[row->batch_row].num_pending++;
        runner->batch.rows[row->batch_row].drawn_index = i;
    }
    if (runner->fwd.num_tokens > 0)
        launch(runner, own, graph);
    dev->ops.set_mark(dev, slot);
    if (!own->draws_on_device)
        settle(runner, own); // the host has drawn, and knows the rest as well
}

bool model_runner_has_ended(struct model_runner *runner)
{
    if (runner->num_collected == runner->num_submitted)
        return true;
    int32_t slot = (int32_t)(runner->num_collected % runner->sizes.num_steps);
    const struct runner_step *own = &runner->steps[slot];
    return own->is_settled || own->status != STATUS_OK ||
           runner->dev.ops.passed_mark(&runner->dev, slot);
}

enum status model_runner_collect(struct model_runner *runner, struct model_runner_output *result,
                                 struct error *err)
{
    CHECK(runner->num_collected < runner->num_submitted);
    struct runner_step *own = &runner->steps[runner->num_collected++ % runner->sizes.num_steps];
    if (!own->is_settled)
        settle(runner, own);
    if (own->status != STATUS_OK)
        return error_set(err, own->status, "%s", own->err.message);
    pooler_finish(&runner->pooler, &runner->batch, own->step, own->outputs);
    *result = (struct model_runner_output){own->step->num_rows, own->outputs};
    return STATUS_OK;
}
