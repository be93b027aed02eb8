// What the engine knows of single requests, for people: where a request's time went, a recording of
// the scheduler's decisions, and why a request was refused.
#pragma once

#include <stdbool.h>

#include "api_server/api_error.h"
#include "api_server/router.h"
#include "message/message.h"

/** GET /debug/requests/{request_id}. */
void serving_debug_request(struct api_call *call);

/** POST /debug/recording: the engine writes its flight recorder to a file. */
void serving_debug_recording(struct api_call *call);

/** The error for a request that can never run, with its numbers. False: it was not refused. */
bool refusal_explain(const struct request_refusal *refusal, struct api_error *err);
