// The file format of the flight recorder, and reading and writing its numbers.
//
// A recording is the magic, the version (both below, 4 bytes little-endian), and records:
//
//   kind (1 byte), length of the rest (4 bytes little-endian), the rest
//
// Numbers are LEB128 varints, signed ones zigzag-coded; a content id is 16 bytes. In order:
//
//   CONFIG    what the scheduler was given; once, first
//   SNAPSHOT  its whole state between two steps; the first one is where replay starts
//   ADD       a request: lengths, limits, content ids of its full blocks
//   ABORT     requests taken away
//   RESET     the prefix cache was reset, or could not be
//   STEP      what scheduler_schedule() decided: preemptions, admissions, rows, blocks
//   UPDATE    how the oldest step in flight ended, content ids of blocks that became full, how long
//   each phase took GAP       records are missing here; replay goes on at the next SNAPSHOT
//
// No text and no token is in it. Of a prompt there are its length and, for each full block, a
// content id: a keyed hash of the block's place in the hash chain, whose key dies with the engine.
// Of a sampled token there is only whether it ended its request, and by which of the request's
// stop tokens; of a vector only whether it was finite. That is all that decisions depend on.
//
// A file that was cut off within its last record (the engine died) is read up to there.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "engine/block_hash.h"
#include "engine/scheduler.h"

#define RECORDING_MAGIC "VLLMREC"

enum { RECORDING_MAGIC_BYTES = 8, RECORDING_VERSION = 2, RECORD_HEAD_BYTES = 5 };

enum record_kind {
    RECORD_CONFIG = 1,
    RECORD_SNAPSHOT,
    RECORD_ADD,
    RECORD_ABORT,
    RECORD_RESET,
    RECORD_STEP,
    RECORD_UPDATE,
    RECORD_GAP,
};

/** How a sampled token is told: one that ends nothing, no token at all, or what ended the request.
 */
enum token_class { TOKEN_PLAIN, TOKEN_NONE, TOKEN_EOS, TOKEN_FIRST_STOP };

/** Where the two halves of the ring and their tests agree on a key. NULL as a key: ids as they
 *  are, for a scheduler that works on content ids already. */
struct content_key {
    unsigned char secret[BLOCK_HASH_SECRET_BYTES];
};

struct block_hash content_id(const struct content_key *key, struct block_hash hash);

/** What a request asks of its prompt, in one number: whether it wants log-probabilities, and how it
 *  pools. */
static inline int32_t prompt_use_of(const struct request *request)
{
    return (request->sampling.num_prompt_logprobs >= 0) + 2 * (int32_t)request->pooling.type;
}

// ---- writing -------------------------------------------------------------------------------

/** Fills memory of the caller's. What does not fit is dropped and `overflow` says so. */
struct record_writer {
    uint8_t *at, *end;
    bool overflow;
};

void write_uint(struct record_writer *w, uint64_t value);
void write_int(struct record_writer *w, int64_t value);
void write_content(struct record_writer *w, const struct content_key *key, struct block_hash hash);

void config_write(struct record_writer *w, const struct scheduler_config *config);

/** The state of a scheduler that has no step in flight. */
void snapshot_write(struct record_writer *w, const struct scheduler *s,
                    const struct content_key *key);

// ---- reading -------------------------------------------------------------------------------

/** A cursor over one record. The first failure sticks; later reads return zeros. */
struct record_reader {
    const uint8_t *at, *end;
    enum status status;
    struct error *err;
};

static inline bool record_ok(const struct record_reader *r)
{
    return r->status == STATUS_OK;
}

/** Notes a failure unless there is one already. */
void record_fail(struct record_reader *r, const char *format, ...) PRINTF_FORMAT(2, 3);

/** A number in [min, max]; `field` stands in the message. */
int64_t read_int(struct record_reader *r, const char *field, int64_t min, int64_t max);
int32_t read_i32(struct record_reader *r, const char *field, int32_t min, int32_t max);
uint64_t read_uint(struct record_reader *r, const char *field);
struct block_hash read_content(struct record_reader *r);

/** A count of things that take at least `min_bytes` of the record each. */
int32_t read_count(struct record_reader *r, const char *field, int32_t max, size_t min_bytes);

/** Errors: INVALID unless everything was read. */
NODISCARD enum status record_finish(struct record_reader *r);

/** What prompt_use_of() was, into the request. */
void read_prompt_use(struct record_reader *r, struct engine_core_request *request);

/** Replay's vocabulary: EOS, the request's stop tokens, and everything else. */
enum { REPLAY_PLAIN_TOKEN, REPLAY_EOS, REPLAY_FIRST_STOP, REPLAY_VOCAB_SIZE = 1024 };

/** `config->kv_cache` is set to `kv_cache`, which is filled. Errors: INVALID. */
NODISCARD enum status config_read(struct record_reader *r, struct scheduler_config *config,
                                  struct kv_cache_config *kv_cache);

/** Fills a fresh scheduler of the same configuration. Errors: INVALID: then it can only be
 *  deinitialised. */
NODISCARD enum status snapshot_read(struct record_reader *r, struct scheduler *s);
