// Recordings from another process, replayed: whatever the file says, it ends with a report or with
// an error. Sizes are bounded so that the time goes into decisions, not into memory.
#include <stdint.h>
#include <string.h>

#include "engine/replay.h"

enum { MAX_BLOCKS = 512 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct replay_report report;
    struct error err = {0};
    struct str bytes = {(const char *)data, size};
    if (replay_run(bytes, MAX_BLOCKS, &report, &err) != STATUS_OK)
        CHECK(err.message[0] != '\0');
    else
        CHECK(!report.differs);
    return 0;
}
