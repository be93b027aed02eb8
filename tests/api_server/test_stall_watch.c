// When a client counts as one that reads no more.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api_server/generation.h"
#include "base/memory.h"

static const int64_t SECOND_NS = 1000000000;

struct look {
    int32_t at_s;
    size_t pending_bytes;
    uint64_t taken_bytes;
    bool is_over;
};

static void expect_looks(const struct look *looks, size_t num_looks)
{
    struct stall_watch watch = {0};
    for (size_t i = 0; i < num_looks; i++) {
        const struct look *look = &looks[i];
        if (stall_watch_is_over(&watch, look->pending_bytes, look->taken_bytes,
                                (1 + look->at_s) * SECOND_NS) != look->is_over)
            fail_msg("look %zu, after %d s: expected %d", i, (int)look->at_s, look->is_over);
    }
}

static void a_client_that_takes_nothing_is_cut_off_after_a_while(void **state)
{
    (void)state;
    static const struct look looks[] = {
        {0, MAX_PENDING_BYTES + 1, 500, false},
        {MAX_STALL_S, MAX_PENDING_BYTES + 1, 500, false},
        {MAX_STALL_S + 1, MAX_PENDING_BYTES + 1, 500, true},
    };
    expect_looks(looks, ARRAY_LEN(looks));
}

// As much waits at each look, and never so little as at the first, because what is new fills the
// place of what was taken.
static void a_slow_client_with_a_fast_engine_is_kept(void **state)
{
    (void)state;
    static const struct look looks[] = {
        {0, MAX_PENDING_BYTES + 1, 0, false},
        {50, MAX_PENDING_BYTES + 300, 900, false},
        {100, MAX_PENDING_BYTES + 300, 1800, false},
        {150, MAX_PENDING_BYTES + 200, 2700, false},
        {150 + MAX_STALL_S + 1, MAX_PENDING_BYTES + 200, 2700, true},
    };
    expect_looks(looks, ARRAY_LEN(looks));
}

static void a_client_that_has_caught_up_starts_afresh(void **state)
{
    (void)state;
    static const struct look looks[] = {
        {0, MAX_PENDING_BYTES + 1, 0, false},
        {50, MAX_PENDING_BYTES, 1, false},
        {90, MAX_PENDING_BYTES + 1, 1, false},
        {90 + MAX_STALL_S, MAX_PENDING_BYTES + 1, 1, false},
        {90 + MAX_STALL_S + 1, MAX_PENDING_BYTES + 1, 1, true},
    };
    expect_looks(looks, ARRAY_LEN(looks));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_takes_nothing_is_cut_off_after_a_while),
        cmocka_unit_test(a_slow_client_with_a_fast_engine_is_kept),
        cmocka_unit_test(a_client_that_has_caught_up_starts_afresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
