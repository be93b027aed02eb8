// How long the parts of a request took, for the log and for the metrics object of answers.
#pragma once

#include "api_server/generation.h"

/** In seconds; 0 where a part never came. */
struct request_timings {
    double queue;             // in the engine's queue
    double prefill;           // admitted -> first token
    double decode;            // first -> last token
    double mean_itl;          // between two tokens
    double tokens_per_second; // generated, from admission to the last token
};

struct request_timings request_timings_of(const struct choice *choice);

/** One line about a choice that has ended, if --enable-log-request-timings asks for it. */
void request_timings_log(const struct choice *choice);

/** The metrics object, or null: without --enable-per-request-metrics, with several choices, and for
 *  a request that made no token. */
void request_timings_write(struct buf *out, const struct generation *g);

/** Whether request_timings_write() writes an object. */
bool request_timings_are_shown(const struct generation *g);
