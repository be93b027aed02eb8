// On a GPU whose kernels are batch-invariant the same requests give the same tokens and
// log-probabilities, to the bit, whether or not a step is submitted before the one before it has
// ended. Requests come in waves: a decoding row beside a prompt is another kernel's work.
#include "engine/token_modes.h"

static const struct mode MODES[] = {
    {"GPU", "cuda", TRISTATE_FALSE, false, 1000, true},
    {"GPU, async", "cuda", TRISTATE_TRUE, false, 1000, true},
    {"GPU, async again", "cuda", TRISTATE_TRUE, false, 1000, true},
};

static void overlapping_steps_give_the_same_tokens(void **state)
{
    (void)state;
    if (!cuda_is_available()) {
        print_message("no GPU, or no driver, on this machine\n");
        skip();
    }
    struct world *w = xcalloc(1, sizeof(*w));
    static struct answer expected[NUM_REQUESTS];
    for (int32_t i = 0; i < (int32_t)ARRAY_LEN(allowed); i++)
        allowed[i] = 3 + 2 * i;
    for (size_t m = 0; m < ARRAY_LEN(MODES); m++) {
        run(w, FIXTURES_DIR "/models/qwen3", &MODES[m]);
        print_message("%s: %lld overlaps\n", MODES[m].name, (long long)w->num_overlaps);
        if (m == 0)
            memcpy(expected, w->answers, sizeof(expected));
        for (int32_t i = 0; i < NUM_REQUESTS; i++)
            compare(&expected[i], &w->answers[i], i);
        assert_int_equal(w->num_overlaps > 0, MODES[m].async == TRISTATE_TRUE);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlapping_steps_give_the_same_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
