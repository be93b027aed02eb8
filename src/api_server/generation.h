// The life of a request that generates, or pools: body → prompts → engine → answer, streamed or
// whole.
//
//   PREPARING (loop or pool) ──▶ RUNNING ──all choices finished──▶ answered
//        │ error: an HTTP error      │ client leaves: aborted, nothing is sent
//        ▼                           │ engine fails: an HTTP error, or an error event and [DONE]
//     answered                       ▼ server stops: finish_reason "abort"
//
// Endpoints differ in how the body is read and how answers look: struct generation_kind. Some only
// look at the prompt (answer_prepared); a background generation answers at once and lives on
// without its call.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api_server/output_processor.h"
#include "api_server/router.h"
#include "api_server/server.h"
#include "api_server/stop_matcher.h"

enum {
    MAX_PENDING_BYTES = 1 << 20, // unread by a client: beyond it what is new waits elsewhere
    MAX_STALL_S = 60,            // no byte taken for so long: the client is cut off
};

/** How long a client has taken nothing of more than MAX_PENDING_BYTES. `= {0}`: it keeps up. */
struct stall_watch {
    int64_t since_ns; // 0: it keeps up
    uint64_t taken_bytes;
};

/**
 * Looks at a client again, of which `pending_bytes` wait to be taken and `taken_bytes` have been,
 * so far. True: it has taken nothing for MAX_STALL_S. How much waits says nothing of that, as new
 * bytes take the place of those that a client reads slowly.
 */
bool stall_watch_is_over(struct stall_watch *watch, size_t pending_bytes, uint64_t taken_bytes,
                         int64_t now_ns);

struct prompt {
    struct str text; // what echo gives back; ptr NULL: not kept
    int32_t num_ids;
    const int32_t *ids;
    struct sampling_params sampling;       // neutral where the request pools
    int32_t num_unfinished, max_generated; // over its choices
};

struct event_log;
struct response; // what /v1/responses keeps besides (serving_responses.c)

struct choice {
    struct output_processor out; // first: an engine_request is its choice
    struct generation *generation;
    struct prompt *prompt;
    int32_t index;
    bool has_role_chunk, has_chunk; // something was streamed
    bool is_queued;                 // counted in num_queued_prompt_tokens
    bool is_deferred;               // the client reads slowly: deltas gather
    int64_t text_offset;            // code points of logprobs so far
    int64_t last_timestamp_ns;      // engine's clock at the last output
    int64_t queued_ns, scheduled_ns, first_token_ns, last_token_ns;
    int32_t num_pooled; // 0: no vector yet
    const float *pooled;
};

struct generation {
    struct pool_job job;
    struct api_server *server;
    struct api_call *call; // NULL: the client has left, or was answered and does not wait
    const struct generation_kind *kind;
    struct arena arena;
    struct generation *previous, *next; // all of the server's
    bool in_pool, is_linked, stream_begun;
    bool is_background; // answered as soon as it has started

    struct str body, header_request_id; // copies
    struct str data_parallel_rank;
    json_t *json;
    union {
        struct chat_request chat;
        struct completion_request completion;
        struct embedding_request embedding;
    };
    struct pooling_params pooling;    // type NONE: it generates
    struct generation_fields *fields; // of the request above
    enum status prepare_status;
    struct api_error error;

    struct response *response; // NULL but for /v1/responses; in the arena
    struct event_log *events;  // held; where a background generation's stream goes, else NULL

    const char *id; // "chatcmpl-..."
    const char *model;
    struct str role;      // chat: of the answer
    struct str echo_text; // chat: put before the answer
    int64_t created;      // seconds
    int64_t arrival_ns, last_write_ns;
    struct stall_watch stall;
    struct stop_matcher stops;
    struct str chunk_head; // what every chunk starts with, up to "choices":[
    int32_t num_prompts;
    struct prompt *prompts;
    int32_t num_choices, num_unfinished;
    struct choice *choices; // prompt by prompt
};

struct generation_kind {
    const char *id_prefix;    // "chatcmpl-"
    const char *chunk_object; // "chat.completion.chunk"; NULL: chunks have no common head
    bool pools;               // each prompt becomes a vector; nothing is drawn or streamed
    bool any_length;          // prompts may be longer than the model takes: nothing is generated
    /** JSON → request; sets fields. Any thread. */
    enum status (*parse)(struct generation *g, struct api_error *err);
    /** Makes the prompts: texts, or ids. Any thread. */
    enum status (*make_prompts)(struct generation *g, struct api_error *err);
    /** Appends the answer to a request that generates nothing. NULL: it generates. */
    void (*answer_prepared)(struct generation *g, struct buf *out);
    /** The choices are there and nothing is sent yet; appends a stream's first events. That of a
     *  background generation takes the call over. NULL: none. */
    void (*on_start)(struct generation *g, struct buf *out);
    /** Appends the choice's events for `delta`. */
    void (*write_chunk)(struct generation *g, struct choice *choice,
                        const struct output_delta *delta, struct buf *out);
    /** Appends the whole answer; of a background generation, as it stands. */
    void (*write_answer)(struct generation *g, struct buf *out);
    /** Appends what follows the last chunk of a stream. */
    void (*write_stream_end)(struct generation *g, struct buf *out);
    /** Appends what a stream that has begun ends with when generating fails. */
    void (*write_stream_error)(struct generation *g, const struct api_error *err, struct buf *out);
    /** All choices have finished, or (`err`) generating failed. NULL: nothing to do. */
    void (*on_end)(struct generation *g, const struct api_error *err);
};

/** Starts on a call's body; the call ends when the answer is there. */
void generation_begin(struct api_call *call, const struct generation_kind *kind);

/** Ends a background generation and frees it. */
void generation_cancel(struct generation *g);

/** For a timer: what slow readers can take now, keep-alive comments, clients that never read. */
void generation_tick_all(struct api_server *server);
/** The server stops: every answer ends here, with finish_reason "abort". */
void generation_abort_all(struct api_server *server);
/** Cuts off whoever is still there. The pool must be gone. */
void generation_drop_all(struct api_server *server);
/** Body to prompts; fills g->error on failure. Any thread. */
enum status generation_prepare(struct generation *g);

/** Renders g->chat into one prompt; for every endpoint that is a chat. Any thread. */
enum status chat_make_prompts(struct generation *g, struct api_error *err);

// ---- between the files of a generation ----

/** Whether so many choices may go to the engine now. Errors: UNAVAILABLE, with when to come again.
 */
enum status generation_admit(struct generation *g, int64_t num_choices, struct api_error *err);

/** The lines of --enable-log-requests. */
void generation_log(const struct generation *g);

/** Counts what a step did for a choice, before it is taken in. */
void generation_count_output(struct choice *choice, const struct engine_core_output *output,
                             int64_t timestamp);

/** Counts a choice that has ended, once. */
void generation_count_finish(struct choice *choice);

// ---- parts that answers share (answer.c) ----

/** {"id":...,"object":...,"created":...,"model":... */
void answer_begin(struct buf *out, const struct generation *g, const char *object);
/** ,"choices":[...] up to and with the usage. */
void answer_write_choices(struct buf *out, struct generation *g,
                          void (*write_choice)(struct buf *out, struct choice *choice));
/** What stands behind everything else, and the end of the object. */
void answer_end(struct buf *out, const struct generation *g);
/** The running total of a choice, where it was asked for. */
void answer_write_running_usage(struct buf *out, const struct choice *choice);
/** From the end of a chunk's choice to that of its event. */
void answer_end_chunk(struct buf *out, const struct choice *choice, bool is_finish);
/** "stop", "length" ... or null, as JSON. */
void answer_write_finish_reason(struct buf *out, const struct choice *choice);
/** The stop string, the stop token's id, or null. */
void answer_write_stop_reason(struct buf *out, const struct choice *choice);
/** The usage object; `one` (may be NULL): counts of that choice alone, for running totals. */
void answer_write_usage(struct buf *out, const struct generation *g, const struct choice *one,
                        bool with_null_details);
void answer_write_ids(struct buf *out, const int32_t *ids, int32_t num_ids);
/** The ids if the client asked for them, else null. */
void answer_write_token_ids(struct buf *out, const struct choice *choice, int32_t first,
                            int32_t end);
/** What the render endpoints answer (serving_render.c). */
void render_write_chat(struct generation *g, struct buf *out);
void render_write_completions(struct generation *g, struct buf *out);
void answer_write_prompt_logprobs(struct buf *out, const struct choice *choice);
struct logprob_format answer_logprob_format(const struct generation *g);
/** Starts an event: "data: {...,"choices":[". */
void sse_begin_chunk(struct buf *out, const struct generation *g);
/** Starts an event that has a name: "event: NAME\ndata: ". The caller adds JSON and an empty line.
 */
void sse_begin_event(struct buf *out, const char *name);
/** How OpenAI's streams end: usage if it was asked for, then [DONE]; or the error, then [DONE]. */
void sse_end_stream(struct generation *g, struct buf *out);
void sse_fail_stream(struct generation *g, const struct api_error *err, struct buf *out);
