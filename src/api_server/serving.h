// The endpoints. Each handler ends its call, now or later.
#pragma once

#include "api_server/router.h"

void serving_chat(struct api_call *call);
void serving_completion(struct api_call *call);
void serving_chat_render(struct api_call *call);
void serving_completion_render(struct api_call *call);
void serving_embedding(struct api_call *call);
void serving_responses(struct api_call *call);
void serving_response_get(struct api_call *call);
void serving_response_cancel(struct api_call *call);
void serving_messages(struct api_call *call);
void serving_count_tokens(struct api_call *call);
void serving_server_info(struct api_call *call);
void serving_openapi(struct api_call *call);
void serving_docs(struct api_call *call);
void serving_models(struct api_call *call);
void serving_tokenize(struct api_call *call);
void serving_detokenize(struct api_call *call);
void serving_health(struct api_call *call);
void serving_version(struct api_call *call);
void serving_invocations(struct api_call *call);
void serving_load(struct api_call *call);
void serving_metrics(struct api_call *call);
void serving_reset_prefix_cache(struct api_call *call);
