// ZeroMQ sockets between API servers and the EngineCore, and the frames on them.
//
// The engine binds one ROUTER; each API server connects a DEALER whose identity is its client
// index. Every frame is one MessagePack array (codec.h). The sockets live in `ipc_dir`; a restarted
// engine binds the same name again, and API servers reconnect by themselves.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"
#include "message/message.h"

struct channel;

/** The engine's end. Errors: IO. */
NODISCARD enum status channel_bind(struct channel **out, const char *ipc_dir, struct error *err);

/** An API server's end. Errors: IO. */
NODISCARD enum status channel_connect(struct channel **out, const char *ipc_dir,
                                      int32_t client_index, struct error *err);

/** The engine's end waits until its frames have left, one second at most; the other end drops what
 *  it has not sent. */
void channel_close(struct channel *channel);

/** A descriptor that turns readable when something may have arrived (edge-triggered: receive until
 *  there is nothing left). */
int channel_fd(const struct channel *channel);

/** Sends a whole frame to the peer (engine's end: to that client; ignored at the other end).
 *  Never blocks. Errors: UNAVAILABLE (the queue is full or the peer is unknown), IO. */
NODISCARD enum status channel_send(struct channel *channel, int32_t client_index, struct str frame,
                                   struct error *err);

/** Receives a frame if there is one: `*frame` lives until the next call; `*client_index` tells who
 *  sent it (engine's end). False when there is none. */
NODISCARD bool channel_receive(struct channel *channel, int32_t *client_index, struct str *frame);

/** Waits until a frame may be there or `timeout_ns` (-1: for ever) passed or a signal came. */
void channel_wait(struct channel *channel, int64_t timeout_ns);
