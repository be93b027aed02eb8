// What the files of this room share: one API server process.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api_server/api_keys.h"
#include "api_server/engine_client.h"
#include "api_server/http_server.h"
#include "api_server/metrics.h"
#include "api_server/openai_protocol.h"
#include "api_server/retry_after.h"
#include "api_server/tokenizer_pool.h"
#include "base/arena.h"
#include "base/buf.h"
#include "config/hf_config.h"
#include "config/options.h"
#include "message/shared_page.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

struct generation;
struct tls;
struct response_store;

/** A chat template of the model's, by its name. */
struct named_template {
    struct str name;                // in model_facts.config.arena
    struct chat_template *template; // NULL: beyond us
};

/** What does not change after start, so that any thread may read it. */
struct model_facts {
    struct model_config config;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;    // NULL: the model has none
    struct chat_template *tool_template;    // where there are tools; NULL: as without
    struct named_template *named_templates; // that requests may ask for by name
    int32_t num_named_templates;
    bool wants_content_parts;
    json_t *special_tokens;          // object of strings, for templates
    json_t *default_template_kwargs; // object or NULL
    struct protocol_config protocol;
    char system_fingerprint[40];
};

struct cors {
    bool all_origins, all_methods, all_headers, credentials;
    json_t *origins, *methods, *headers; // lists
};

/** The event loop's, but for `facts`, `options` and `page`. */
struct api_server {
    const struct serve_options *options;
    struct shared_page *page;
    int32_t client_index;
    struct model_facts facts;
    struct cors cors;
    struct key_digest *key_digests; // of --api-key, one each
    struct tls *tls;                // NULL: plain HTTP
    struct http_server *http;
    struct engine_client *engine;
    struct tokenizer_pool *pool;
    int again_fd; // set when the engine's messages took their whole turn
    struct metrics metrics;
    struct gpu_monitor gpus;
    struct retry_after retry_after;

    struct generation *generations;     // all that live
    struct response_store *responses;   // NULL: none are kept
    struct event_reader *event_readers; // of background responses
    bool stopping;
    int64_t stop_deadline_ns;  // what runs then is aborted
    int64_t flush_deadline_ns; // the loop ends then; 0: not yet

    struct buf scratch;         // one event's text
    struct arena scratch_arena; // one event's memory
};

/** The longest sequence, as the engine decided; 0 before it is ready. */
static inline int32_t api_server_max_model_len(const struct api_server *server)
{
    return atomic_load(&server->page->engine.max_model_len);
}

/** Whether the model pools prompts instead of generating. */
static inline bool api_server_pools(const struct api_server *server)
{
    return server->facts.protocol.pooling.type != POOLING_NONE;
}

/** What this server counts for all servers of the host to see. */
static inline struct front_page *api_server_front(const struct api_server *server)
{
    return &server->page->fronts[server->client_index];
}

/** Whether new requests can be taken: the engine is up and nobody is stopping. Any thread. */
bool api_server_accepts(const struct api_server *server, struct api_error *err);

/** How far the work has come, for retry_after. */
struct progress_sample api_server_progress(const struct api_server *server);

/** Whether `model` is empty or one of ours. */
NODISCARD enum status api_server_check_model(const struct api_server *server, struct str model,
                                             struct api_error *err);
