// The endpoints. Each handler ends its call, now or later.
#pragma once

#include "api_server/router.h"

void serving_chat(struct api_call *call);
void serving_completion(struct api_call *call);
void serving_models(struct api_call *call);
void serving_tokenize(struct api_call *call);
void serving_detokenize(struct api_call *call);
void serving_health(struct api_call *call);
void serving_version(struct api_call *call);
void serving_load(struct api_call *call);
void serving_metrics(struct api_call *call);
void serving_reset_prefix_cache(struct api_call *call);
