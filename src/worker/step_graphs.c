// Recordings of decoding steps: a ladder of sizes, each recorded once and replayed for whatever
// lies in the step's arrays then.
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/host_memory.h"
#include "worker/model_runner.h"

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

int32_t step_graphs_find(const struct step_graphs *graphs, int32_t num_seqs)
{
    for (int32_t i = 0; i < graphs->num; i++) {
        if (graphs->sizes[i] >= num_seqs)
            return i;
    }
    return -1;
}

/** Sets a step of `size` sequences up that decode nothing. */
static void set_up_empty_step(struct model_runner *runner, int32_t size)
{
    static const struct scheduler_output nothing = {0};
    const struct step_counts counts = {.num_tokens = size, .num_seqs = size, .num_logits = size};
    struct runner_step *own = &runner->steps[0];
    input_batch_begin(&runner->batch, 0, &counts);
    input_batch_build(&runner->batch, &nothing, &runner->fwd);
    input_batch_pad(&runner->batch, size, &runner->fwd);
    for (int32_t g = 0; g < runner->config->kv_cache.num_groups; g++) {
        runner->fwd.groups[g].batch.max_query_len = 1;
        runner->fwd.groups[g].batch.max_seq_len = runner->config->max_model_len;
    }
    own->num_logits_rows = size;
    own->draws_on_device = true;
    input_batch_upload(&runner->batch, &runner->fwd);
}

/** Runs each size once, so that nothing is left to be chosen or allocated. */
static enum status warm_up(struct model_runner *runner, int32_t count, struct error *err)
{
    struct device *dev = &runner->dev;
    for (int32_t i = 0, size = 1; i < count; i++, size = next_graph_size(size)) {
        set_up_empty_step(runner, size);
        model_runner_forward(runner, &runner->steps[0]);
        TRY(dev->ops.synchronize(dev, err));
    }
    return STATUS_OK;
}

static enum status record_sizes(struct model_runner *runner, int32_t count, struct error *err)
{
    struct step_graphs *graphs = &runner->graphs;
    struct device *dev = &runner->dev;
    for (int32_t i = 0, size = 1; i < count; i++, size = next_graph_size(size)) {
        graphs->sizes[i] = size;
        set_up_empty_step(runner, size);
        dev->ops.record_begin(dev);
        model_runner_forward(runner, &runner->steps[0]);
        graphs->recordings[i] = dev->ops.record_end(dev);
        graphs->logits[i] = runner->last_logits;
        graphs->num = i + 1;
        TRY(dev->ops.synchronize(dev, err));
    }
    return STATUS_OK;
}

static int64_t free_bytes(struct device *dev)
{
    int64_t total = 0, available = 0;
    dev->ops.memory_info(dev, &total, &available);
    return available;
}

enum status step_graphs_record(struct model_runner *runner, struct error *err)
{
    struct device *dev = &runner->dev;
    const struct engine_config *config = runner->config;
    int32_t count = dev->ops.record_begin && config->model->vocab_size <= dev->max_sampled_vocab
                        ? step_graphs_count(config)
                        : 0;
    if (count == 0)
        return STATUS_OK;
    int64_t start_ns = clock_monotonic_ns();
    TRY(warm_up(runner, count, err));
    int64_t free_before = free_bytes(dev);
    TRY(record_sizes(runner, count, err));
    int64_t taken = max_i64(free_before - free_bytes(dev), 0); // less where others gave some back
    log_info("Graph capturing finished in %.2f secs, took %s: %d CUDA graphs for up to %d requests",
             (double)(clock_monotonic_ns() - start_ns) / 1e9, byte_text(taken).text, count,
             runner->graphs.sizes[count - 1]);
    if (taken > config->graph_bytes)
        log_warning("CUDA graphs took %s of the GPU's memory, %s were planned: where it runs out, "
                    "lower --gpu-memory-utilization or --max-cudagraph-capture-size",
                    byte_text(taken).text, byte_text(config->graph_bytes).text);
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
