// The memory plan for a reader: as lines of text, which `vllm serve` logs and `vllm plan` prints,
// and as JSON.
#pragma once

#include <stdbool.h>

#include "base/buf.h"
#include "worker/worker.h"

enum { MAX_PLAN_REMEDIES = 8 };

/** One change of the flags with which a plan fits. */
struct plan_remedy {
    char flags[96];  // "--max-model-len 1024"
    char effect[96]; // what it costs
};

/** What did not fit and what would; `= {0}` for a plan that fits. */
struct plan_verdict {
    const char *problem; // NULL: it fits
    int32_t num_remedies;
    struct plan_remedy remedies[MAX_PLAN_REMEDIES];
};

/** "1,234,567". */
struct number_text {
    char text[32];
};
struct number_text number_text(int64_t value);

/** Appends the table, one fact a line, each line ended by a newline. */
void plan_report_text(struct buf *out, const struct engine_config *config);

/** Appends how many requests of several lengths run at once; likewise. */
void plan_report_concurrency(struct buf *out, const struct engine_config *config);

/** Appends one JSON object. */
void plan_report_json(struct buf *out, const struct engine_config *config,
                      const struct plan_verdict *verdict);

/** Weights, workspace and cache together. */
int64_t engine_config_total_bytes(const struct engine_config *config);

/** How many requests of `len` tokens the cache holds at once; 0 without a cache. */
double engine_config_concurrency(const struct engine_config *config, int32_t len);

/**
 * Looks for single flags that make a plan fit which engine_config_plan_for() refused with
 * OUT_OF_MEMORY: each is tried with a plan of its own, at its least change. Those that take nothing
 * from clients come first. Where there is none, several flags at once. `memory_bytes` as there.
 */
void plan_find_remedies(struct plan_verdict *verdict, const struct engine_config *refused,
                        int64_t memory_bytes);
