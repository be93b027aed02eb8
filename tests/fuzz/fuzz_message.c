// Frames from another process: whatever is accepted can be written and read again.
#include <stdint.h>

#include "message/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = {0};
    struct message message, again;
    struct error err = {0};
    struct str frame = {(const char *)data, size};
    if (message_decode(&message, frame, &arena, &err) == STATUS_OK) {
        struct buf out = {0};
        message_encode(&out, &message);
        CHECK(message_decode(&again, buf_str(&out), &arena, &err) == STATUS_OK);
        CHECK(again.kind == message.kind);
        buf_deinit(&out);
    } else {
        CHECK(err.message[0] != '\0');
    }
    arena_deinit(&arena);
    return 0;
}
