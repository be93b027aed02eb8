// The load of the engine as a header of answers, for balancers that ask for it (ORCA, the open
// request cost aggregation of xDS): waiting requests and use of the KV cache.
#pragma once

#include "api_server/router.h"

/**
 * Adds `endpoint-load-metrics` to a whole answer where the request's
 * `endpoint-load-metrics-format` asks for it as TEXT or JSON. Other formats are not known: no
 * header.
 */
void load_report_add(struct api_call *call);
