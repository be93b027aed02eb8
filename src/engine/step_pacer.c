// When to decide the next step while one runs.
#include "engine/step_pacer.h"

#include "base/memory.h"

enum {
    MIN_MARGIN_NS = 300000,
    MARGIN_BEGINS = 3,   // a step may take so many times longer to begin than most do
    AVERAGED_BEGINS = 8, // about
};

/** Where steps like this one are found; -1: they are not predicted. */
static int32_t kind_of(const struct scheduler_output *step)
{
    int32_t num = step->num_rows;
    if (num == 0 || step->num_scheduled_tokens != num)
        return -1;                                                    // a prompt is computed
    int32_t kind = num < 8 ? num - 1 : 6 + (int32_t)ceil_div(num, 8); // as GPUs record them
    return kind < NUM_STEP_KINDS ? kind : -1;
}

void step_pacer_note_begin(struct step_pacer *pacer, int64_t duration_ns)
{
    pacer->begin_ns += (duration_ns - pacer->begin_ns) / AVERAGED_BEGINS;
}

void step_pacer_note_end(struct step_pacer *pacer, const struct scheduler_output *step,
                         int64_t duration_ns, bool was_awaited)
{
    int32_t kind = kind_of(step);
    if (kind < 0)
        return;
    struct recent_steps *recent = &pacer->kinds[kind];
    // Figures that include lateness would let the next step be decided still later.
    if (was_awaited)
        recent->durations_ns[recent->num++ % NUM_RECENT_STEPS] = duration_ns;
    else
        recent->num = 0;
    if (recent->num == 2 * NUM_RECENT_STEPS)
        recent->num = NUM_RECENT_STEPS; // full is full
}

int64_t step_pacer_margin_ns(const struct step_pacer *pacer)
{
    return max_i64(MIN_MARGIN_NS, MARGIN_BEGINS * pacer->begin_ns);
}

int64_t step_pacer_due_ns(const struct step_pacer *pacer, const struct scheduler_output *step,
                          int64_t start_ns)
{
    int32_t kind = kind_of(step);
    if (kind < 0 || pacer->kinds[kind].num < NUM_RECENT_STEPS)
        return 0;
    const int64_t *durations_ns = pacer->kinds[kind].durations_ns;
    int64_t shortest_ns = durations_ns[0];
    for (int32_t i = 1; i < NUM_RECENT_STEPS; i++)
        shortest_ns = min_i64(shortest_ns, durations_ns[i]);
    return start_ns + max_i64(shortest_ns - step_pacer_margin_ns(pacer), 0);
}
