// The bytes of a request, by prompt.
#pragma once

#include "base/buf.h"
#include "benchmarks/bench_options.h"
#include "benchmarks/dataset.h"
#include "benchmarks/target.h"

/** What all requests of a run have in common. */
struct request_body {
    enum bench_backend backend;
    char *head;       // request line and headers, up to the ones that differ
    char *common;     // JSON members without braces: model, stream, sampling ...
    bool has_own_len; // the extra body says how long answers are, or they have no length
    const char *id_prefix;
};

/** `model` is the name to send. Errors: INVALID (a name that is not UTF-8). */
NODISCARD enum status request_body_init(struct request_body *body,
                                        const struct bench_options *options,
                                        const struct target *target, const char *model,
                                        const char *id_prefix, struct error *err);
void request_body_deinit(struct request_body *body);

/** Replaces the content of `out` by the whole request number `index`; `scratch` is used up. */
void request_body_write(const struct request_body *body, const struct bench_prompt *prompt,
                        int32_t index, struct buf *scratch, struct buf *out);
