// When to decide the next step while one runs: shortly before that one ends, so that whatever
// arrives until then takes part. Decided at once, a step would keep newcomers waiting for two.
//
// Only steps that decode are predicted, from the last ones of about as many sequences. A prediction
// that was too long costs the overlap of one step, and is forgotten; until there are new figures
// steps of that kind are followed at once. No prediction has any influence on tokens.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "message/message.h"

enum {
    NUM_RECENT_STEPS = 4, // the shortest of which is expected again
    NUM_STEP_KINDS = 136, // 1 to 8 sequences, then in eights up to 1,032
};

/** The last steps of a kind. */
struct recent_steps {
    int64_t durations_ns[NUM_RECENT_STEPS]; // a ring
    int32_t num;                            // of them, since the last that was forgotten
};

/** `= {0}` is one that has seen nothing. */
struct step_pacer {
    struct recent_steps kinds[NUM_STEP_KINDS];
    int64_t begin_ns; // from when a step is due to its submission, a moving average
};

/** The host took so long to wake up for a step that was due, to decide and to submit it. */
void step_pacer_note_begin(struct step_pacer *pacer, int64_t duration_ns);

/** A step took so long. `was_awaited`: it was waited for; else it had ended before, nobody knows
 *  when. */
void step_pacer_note_end(struct step_pacer *pacer, const struct scheduler_output *step,
                         int64_t duration_ns, bool was_awaited);

/** How long before a step's end the next one is decided. */
int64_t step_pacer_margin_ns(const struct step_pacer *pacer);

/** When to decide the next step if `step` began at `start_ns`; 0: there is no prediction. */
int64_t step_pacer_due_ns(const struct step_pacer *pacer, const struct scheduler_output *step,
                          int64_t start_ns);
