// The same requests through the real scheduler and a real model give the same tokens and
// log-probabilities, to the bit, whether a step is decided before the one before it has ended or
// not, and whether the host or a device with memory of its own draws.
#include "worker/lazy_device.h"

#include "engine/token_modes.h"

static const struct mode MODES[] = {
    {"CPU", "cpu", TRISTATE_FALSE, false, 1000, false},
    {"CPU, async", "cpu", TRISTATE_TRUE, false, 1000, false},
    {"CPU, async, few blocks", "cpu", TRISTATE_TRUE, false, 16, false},
    {"device", "cuda", TRISTATE_FALSE, false, 1000, false},
    {"device, async", "cuda", TRISTATE_TRUE, false, 1000, false},
    {"device, async, eager", "cuda", TRISTATE_TRUE, true, 1000, false},
    {"device, async, few blocks", "cuda", TRISTATE_UNSET, false, 16, false},
};

static void check_model(const char *model)
{
    struct world *w = xcalloc(1, sizeof(*w));
    static struct answer expected[NUM_REQUESTS];
    for (int32_t i = 0; i < (int32_t)ARRAY_LEN(allowed); i++)
        allowed[i] = 3 + 2 * i;
    for (size_t m = 0; m < ARRAY_LEN(MODES); m++) {
        lazy.num_replays = lazy.num_waits = 0;
        int64_t num_preemptions = run(w, model, &MODES[m]);
        print_message("%s: %lld overlaps, %lld preemptions, %lld replays\n", MODES[m].name,
                      (long long)w->num_overlaps, (long long)num_preemptions,
                      (long long)lazy.num_replays);
        if (m == 0)
            memcpy(expected, w->answers, sizeof(expected));
        for (int32_t i = 0; i < NUM_REQUESTS; i++)
            compare(&expected[i], &w->answers[i], i);
        assert_int_equal(w->num_overlaps > 0, MODES[m].async != TRISTATE_FALSE);
        assert_int_equal(num_preemptions > 0, MODES[m].kv_blocks < 100);
        bool records = strcmp(MODES[m].device, "cuda") == 0 && !MODES[m].enforce_eager;
        assert_int_equal(lazy.num_replays > 0, records);
    }
    free(w);
}

static void the_same_tokens_come_in_every_mode(void **state)
{
    (void)state;
    check_model(FIXTURES_DIR "/models/llama");
}

static void the_same_tokens_come_with_a_sliding_window(void **state)
{
    (void)state;
    check_model(FIXTURES_DIR "/models/qwen2_sliding");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens_come_in_every_mode),
        cmocka_unit_test(the_same_tokens_come_with_a_sliding_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
