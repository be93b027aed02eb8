// What an EngineCore tells of itself: the shared page, and its lines in the log.
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine_core.h"

void engine_core_publish_facts(struct engine_core *core, const struct engine_config *config)
{
    const struct kv_cache_manager *kv = &core->scheduler.kv;
    int64_t blocks_a_request = kv_cache_manager_blocks_needed(kv, config->max_model_len);
    double concurrency = (double)config->kv_cache.num_blocks / (double)blocks_a_request;
    struct engine_page *page = core->page;
    atomic_store(&page->max_model_len, config->max_model_len);
    atomic_store(&page->block_size, config->kv_cache.block_size);
    atomic_store(&page->num_blocks, config->kv_cache.num_blocks);
    atomic_store(&page->max_num_seqs, config->max_num_seqs);
    atomic_store(&page->max_num_batched_tokens, config->max_num_batched_tokens);
    // As many as all those requests hold: hybrid models count every group's blocks.
    atomic_store(&page->kv_cache_size_tokens, (int64_t)(concurrency * config->max_model_len));
    atomic_store(&page->kv_cache_max_concurrency, concurrency);
    atomic_store(&page->prefix_caching, core->scheduler.config.enable_prefix_caching);
}

void engine_core_publish(struct engine_core *core, int64_t now_ns)
{
    struct engine_page *page = core->page;
    const struct scheduler *s = &core->scheduler;
    atomic_store(&page->heartbeat_ns, now_ns);
    atomic_store(&page->num_running, s->num_running);
    atomic_store(&page->num_waiting, s->waiting.len + core->held.len);
    atomic_store(&page->num_used_blocks, block_pool_num_used(&s->kv.pool));

    // The page's counters go on across restarts: only what is new is added.
    const struct scheduler_stats *now = &s->stats;
    struct scheduler_stats *told = &core->reports.published;
    atomic_fetch_add(&page->prefix_cache_queries,
                     now->prefix_cache_queries - told->prefix_cache_queries);
    atomic_fetch_add(&page->prefix_cache_hits, now->prefix_cache_hits - told->prefix_cache_hits);
    atomic_fetch_add(&page->num_preemptions, now->num_preemptions - told->num_preemptions);
    atomic_fetch_add(&page->num_computed_prompt_tokens,
                     now->num_computed_prompt_tokens - told->num_computed_prompt_tokens);
    atomic_fetch_add(&page->num_recomputed_tokens,
                     now->num_recomputed_tokens - told->num_recomputed_tokens);
    atomic_fetch_add(&page->num_generated_tokens,
                     now->num_generated_tokens - told->num_generated_tokens);
    *told = *now;
}

void engine_core_count_step(struct engine_core *core, int64_t num_tokens)
{
    static const int64_t bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                     512, 1024, 2048, 4096, 8192, 16384};
    _Static_assert(ARRAY_LEN(bounds) + 1 == NUM_ITERATION_TOKEN_BUCKETS, "and one beyond the last");
    size_t bucket = 0;
    while (bucket < ARRAY_LEN(bounds) && num_tokens > bounds[bucket])
        bucket++;
    atomic_fetch_add(&core->page->iteration_tokens_buckets[bucket], 1);
    atomic_fetch_add(&core->page->iteration_tokens_sum, num_tokens);
    atomic_fetch_add(&core->page->num_steps, 1);
    const struct step_durations *durations = &core->durations; // sending: of the step before
    const int64_t phases_ns[NUM_STEP_PHASES] = {
        [STEP_PHASE_SCHEDULE] = durations->schedule_ns,
        [STEP_PHASE_EXECUTE] = durations->execute_ns,
        [STEP_PHASE_UPDATE] = durations->update_ns,
        [STEP_PHASE_SEND] = durations->send_ns,
    };
    for (int i = 0; i < NUM_STEP_PHASES; i++)
        atomic_fetch_add(&core->page->step_phase_ns[i], phases_ns[i]);
}

void engine_core_log_stats(struct engine_core *core, int64_t now_ns)
{
    struct engine_reports *reports = &core->reports;
    const struct scheduler *s = &core->scheduler;
    double seconds = (double)(now_ns - reports->logged_ns) / 1e9;
    if (core->options->disable_log_stats || core->options->log_stats_interval_s <= 0 ||
        seconds < core->options->log_stats_interval_s)
        return;
    int64_t prompt =
        s->stats.num_computed_prompt_tokens - reports->logged.num_computed_prompt_tokens;
    int64_t generated = s->stats.num_generated_tokens - reports->logged.num_generated_tokens;
    int64_t preemptions = s->stats.num_preemptions - reports->logged.num_preemptions;
    char preempted[48] = "";
    if (preemptions > 0)
        snprintf(preempted, sizeof(preempted), ", Preemptions: %lld", (long long)preemptions);
    // One idle line shows that the traffic has ended; more would only fill the log.
    bool is_idle = prompt == 0 && generated == 0;
    LOG_AT(is_idle && reports->was_idle ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO,
           "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
           "tokens/s, Running: %d reqs, Waiting: %d reqs%s, GPU KV cache usage: %.1f%%, Prefix "
           "cache hit rate: %.1f%%",
           (double)prompt / seconds, (double)generated / seconds, (int)s->num_running,
           (int)(s->waiting.len + core->held.len), preempted,
           100.0 * block_pool_num_used(&s->kv.pool) / max_i32(s->kv.pool.num_blocks, 1),
           100.0 * scheduler_prefix_hit_rate(s));
    reports->was_idle = is_idle;
    reports->logged = s->stats;
    reports->logged_ns = now_ns;
}
