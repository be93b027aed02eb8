// Server-sent events from any split.
#include "cmocka_setup.h"

#include "base/memory.h"
#include "base/sse_parser.h"

static enum status collect(void *context, struct str data, struct error *err)
{
    (void)err;
    struct buf *seen = context;
    buf_printf(seen, "[" STR_FORMAT "]", STR_ARG(data));
    return STATUS_OK;
}

static void any_split_of_a_stream_gives_the_same_events(void **state)
{
    (void)state;
    const char *stream = ": keep-alive\n\ndata: one\n\ndata:two\r\ndata: lines\r\n\r\n"
                         "event: x\rid: 7\rdata: three\r\rdata\n\nretry: 5\n\ndata:  four \n\n"
                         "data: [DONE]\n\ndata: after the end\n\n";
    const char *expected = "[one][two\nlines][three][][ four ]";
    size_t len = strlen(stream);
    for (size_t first = 0; first <= len; first++) {
        for (size_t second = first; second <= len; second++) {
            struct sse_parser parser = {0};
            struct buf seen = {0};
            struct str all = {stream, len};
            struct str pieces[] = {str_slice(all, 0, first), str_slice(all, first, second),
                                   str_slice(all, second, len)};
            for (size_t i = 0; i < ARRAY_LEN(pieces); i++)
                assert_int_equal(sse_parser_feed(&parser, pieces[i], collect, &seen, NULL),
                                 STATUS_OK);
            assert_true(parser.is_done);
            if (!str_eq_c(buf_str(&seen), expected))
                fail_msg("cut at %zu and %zu: " STR_FORMAT, first, second, STR_ARG(buf_str(&seen)));
            buf_deinit(&seen);
            sse_parser_deinit(&parser);
        }
    }
}

static void an_event_without_end_is_bounded(void **state)
{
    (void)state;
    struct sse_parser parser = {0};
    struct buf seen = {0};
    size_t len = 1 << 20;
    char *block = xmalloc(len);
    memset(block, 'x', len);
    enum status status = STATUS_OK;
    struct error err = {0};
    int num_blocks = 0;
    for (; status == STATUS_OK && num_blocks < 32; num_blocks++)
        status = sse_parser_feed(&parser, (struct str){block, len}, collect, &seen, &err);
    assert_int_equal(status, STATUS_TOO_LARGE);
    assert_in_range(num_blocks, 16, 18);
    free(block);
    sse_parser_deinit(&parser);
    buf_deinit(&seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_of_a_stream_gives_the_same_events),
        cmocka_unit_test(an_event_without_end_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
