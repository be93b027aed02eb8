// Messages as MessagePack arrays: one encoder and one decoder per kind, every length checked.
//
// API server → engine: HELLO [kind, version, client_index], ADD [kind, request], ABORT [kind, ids],
// RESET_PREFIX_CACHE [kind, call_id], DUMP_RECORDING [kind, call_id], FIND_REQUEST [kind, call_id,
// external_id]. Engine → API server: WELCOME [kind, version, generation, num_losses], OUTPUTS
// [kind, outputs], REPLY [kind, call_id, ok], DUMPED [kind, call_id, ok, path or reason], HISTORIES
// [kind, call_id, histories]. An API server says HELLO when it connects and whenever the engine's
// generation, or the number of times that it lost messages to that server, changes; then it sends
// every live request again. The engine drops what an earlier life of that client left.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "message/message.h"

enum message_kind {
    MESSAGE_HELLO = 1,
    MESSAGE_ADD,
    MESSAGE_ABORT,
    MESSAGE_RESET_PREFIX_CACHE,
    MESSAGE_DUMP_RECORDING,
    MESSAGE_FIND_REQUEST,
    MESSAGE_WELCOME = 16,
    MESSAGE_OUTPUTS,
    MESSAGE_REPLY,
    MESSAGE_DUMPED,
    MESSAGE_HISTORIES,
};

/** A decoded message; `kind` tells which member is set. Arrays live in the arena given. */
struct message {
    enum message_kind kind;
    union {
        struct {
            int32_t version, client_index;
        } hello;
        struct engine_core_request add;
        struct {
            int32_t num_ids;
            const uint64_t *ids;
        } abort;
        struct {
            int64_t call_id;
        } reset_prefix_cache, dump_recording;
        struct {
            int64_t call_id;
            uint64_t external_id;
        } find_request;
        struct {
            int32_t version, generation, num_losses;
        } welcome;
        struct engine_core_outputs outputs;
        struct {
            int64_t call_id;
            bool ok;
        } reply;
        struct {
            int64_t call_id;
            bool ok;
            struct str text; // where the file is, or why there is none
        } dumped;
        struct {
            int64_t call_id;
            int32_t num_histories;
            const struct request_history *histories;
        } histories;
    };
};

/** Appends the frame of `message` to `out`. */
void message_encode(struct buf *out, const struct message *message);

/** Reads one frame. Copies into `arena` what the message points to. Errors: INVALID (what is wrong
 *  and where): a peer that sends such a frame is dropped, not trusted. */
NODISCARD enum status message_decode(struct message *message, struct str frame, struct arena *arena,
                                     struct error *err);
