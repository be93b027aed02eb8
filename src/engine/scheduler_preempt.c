// Preemption by recomputation: who gives way, and when it may come back.
//
// Victim. Under FCFS those admitted last, under PRIORITY those with the highest (priority, arrival
// time). Where that leaves several (admitted in one step; choices of one request), the one whose
// return costs least: what it shares with others stays in the cache. The oldest, or most urgent,
// request therefore always advances and ends, and then the next one does.
//
// Return. Recomputing a sequence only to lose it again at its next block is work for nothing. While
// others run, a preempted request comes back when there is room for all its tokens, for 64 more for
// each time it was preempted (at most what it may still produce), and for one more block of every
// running request. When nobody runs it comes back at once.
#include "base/memory.h"
#include "engine/scheduler.h"

enum { PROGRESS_TOKENS = 64, MAX_PROGRESS_FACTOR = 64 };

// Tokens to compute again if the request came back now: those in blocks that nobody else holds.
static int32_t lost_tokens(const struct scheduler *s, const struct request *r)
{
    const struct block_table *table = &r->kv.tables[0];
    int32_t num_shared = 0;
    while (num_shared < table->num_cached && table->blocks[num_shared] != NO_BLOCK &&
           s->kv.pool.blocks[table->blocks[num_shared]].ref_count > 1)
        num_shared++;
    return max_i32(r->num_computed_tokens - num_shared * s->kv.config.block_size, 0);
}

// Whether the policy wants `a` to give way before `b`: 1 yes, -1 no, 0 it does not care.
static int compare_victims(const struct scheduler *s, const struct request *a,
                           const struct request *b)
{
    if (s->config.policy != SCHEDULING_POLICY_PRIORITY)
        return (a->admitted_step > b->admitted_step) - (a->admitted_step < b->admitted_step);
    if (a->priority != b->priority)
        return a->priority > b->priority ? 1 : -1;
    return (a->arrival_time_ns > b->arrival_time_ns) - (a->arrival_time_ns < b->arrival_time_ns);
}

int32_t scheduler_choose_victim(const struct scheduler *s)
{
    int32_t victim = s->num_running - 1;
    int32_t lost = -1; // of the victim, once it matters
    for (int32_t i = victim - 1; i >= 0; i--) {
        const struct request *r = s->running[i];
        int order = compare_victims(s, r, s->running[victim]);
        if (order < 0 && s->config.policy != SCHEDULING_POLICY_PRIORITY)
            break; // the list is in the order of admission
        if (order < 0)
            continue;
        if (order == 0 && lost < 0)
            lost = lost_tokens(s, s->running[victim]);
        int32_t others = order == 0 ? lost_tokens(s, r) : -1;
        if (order > 0 || others < lost) {
            victim = i;
            lost = others;
        }
    }
    return victim;
}

void scheduler_preempt(struct scheduler *s, int32_t index, const struct request *by, int64_t now_ns)
{
    struct request *r = s->running[index];
    struct request_history *history = r->history;
    if (r->num_preemptions < MAX_HISTORY_PREEMPTIONS)
        history->preemptions[r->num_preemptions] = (struct preemption){
            .step = s->step,
            .at_ns = now_ns,
            .by_request_id = by->request_id,
            .by_external_id = by->history->external_id,
            .num_lost_tokens = lost_tokens(s, r),
        };
    s->preemptions[s->num_preemptions++] =
        (struct step_preemption){.victim_id = r->request_id, .by_id = by->request_id};

    scheduler_remove_from_running(s, index);
    kv_cache_manager_free(&s->kv, &r->kv, false);
    scheduler_give_row_back(s, r);
    r->state = REQUEST_WAITING;
    r->num_highest_computed = max_i32(r->num_highest_computed, r->num_computed_tokens);
    r->num_computed_tokens = 0;
    r->num_preemptions++;
    s->stats.num_preemptions++;
    request_queue_push_again(&s->waiting, r);
}

void scheduler_hold_back(const struct scheduler *s, const struct request *r,
                         struct kv_demand *demand)
{
    if (r->num_preemptions == 0 || s->num_running == 0)
        return;
    int32_t progress = PROGRESS_TOKENS * min_i32(r->num_preemptions, MAX_PROGRESS_FACTOR);
    demand->num_reserved_tokens = r->num_tokens + min_i32(progress, r->max_tokens - r->num_tokens);
    demand->watermark_blocks += s->num_running * s->kv.config.num_groups;
}
