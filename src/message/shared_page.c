// One page of memory that the processes of a host share.
#include "message/shared_page.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/memory.h"

enum status shared_page_create(struct shared_page **out, int32_t num_api_servers, struct error *err)
{
    *out = NULL;
    if (num_api_servers < 1 || num_api_servers > MAX_API_SERVERS)
        return error_set(err, STATUS_INVALID, "%d API servers, expected 1 to %d", num_api_servers,
                         MAX_API_SERVERS);
    struct shared_page *page =
        mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no shared memory of %zu bytes: %s",
                         sizeof(*page), strerror(errno));
    page->num_api_servers = num_api_servers;
    page->start_wall_ns = clock_wall_ns();
    *out = page;
    return STATUS_OK;
}

void shared_page_destroy(struct shared_page *page)
{
    if (page)
        munmap(page, sizeof(*page));
}

void engine_page_watch(struct engine_page *page, int64_t now_ns)
{
    int64_t progress = atomic_load(&page->progress);
    if (progress != atomic_load(&page->watched_progress)) {
        atomic_store(&page->watched_progress, progress);
        atomic_store(&page->progress_ns, now_ns);
    }
}

bool engine_page_is_healthy(const struct engine_page *page, int64_t now_ns)
{
    if (atomic_load(&page->state) != ENGINE_STATE_READY)
        return false;
    int64_t last_ns = atomic_load(&page->heartbeat_ns);
    if (atomic_load(&page->step_start_ns) != 0)
        last_ns = max_i64(last_ns, atomic_load(&page->progress_ns));
    return now_ns - last_ns < (int64_t)ENGINE_STALL_S * 1000000000;
}
