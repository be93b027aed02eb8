// Log lines as people and as machines read them.
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/log.h"

/** What `write` sends to standard output, terminated. */
static void capture(char *out, size_t size, void (*write_lines)(void))
{
    int pipe_fds[2], saved = dup(STDOUT_FILENO);
    fflush(stdout);
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    dup2(pipe_fds[1], STDOUT_FILENO);
    write_lines();
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(pipe_fds[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(pipe_fds[0], out + used, size - 1 - used)) > 0;)
        used += (size_t)got;
    close(pipe_fds[0]);
    out[used] = '\0';
}

static void write_two_lines(void)
{
    log_set_process_name("EngineCore");
    log_warning("a \"quoted\" word,\na second line, and a bad byte \xff");
    log_debug("nobody asked for this");
    log_info("%d of %s", 3, "them");
}

static void a_text_line_names_process_level_and_place(void **state)
{
    (void)state;
    char text[1024], expected[64];
    log_set_format(LOG_FORMAT_TEXT);
    capture(text, sizeof(text), write_two_lines);
    snprintf(expected, sizeof(expected), "(EngineCore pid=%d) WARNING ", (int)getpid());
    assert_memory_equal(text, expected, strlen(expected));
    assert_non_null(strstr(text, " [test_log.c:"));
    assert_non_null(strstr(text, "] 3 of them\n"));
    assert_null(strstr(text, "nobody"));
}

static void a_json_line_is_an_object_whatever_the_message_holds(void **state)
{
    (void)state;
    char text[2048], *save = NULL;
    log_set_format(LOG_FORMAT_JSON);
    capture(text, sizeof(text), write_two_lines);
    log_set_format(LOG_FORMAT_TEXT);
    static const char *const levels[] = {"WARNING", "INFO"};
    static const char *const messages[] = {
        "a \"quoted\" word,\na second line, and a bad byte \xef\xbf\xbd", "3 of them"};
    int count = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        assert_true(count < 2);
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        assert_int_equal(json_object_size(object), 7);
        assert_string_equal(json_string_value(json_object_get(object, "level")), levels[count]);
        assert_string_equal(json_string_value(json_object_get(object, "message")), messages[count]);
        assert_string_equal(json_string_value(json_object_get(object, "process")), "EngineCore");
        assert_string_equal(json_string_value(json_object_get(object, "file")), "test_log.c");
        assert_int_equal(json_integer_value(json_object_get(object, "pid")), getpid());
        assert_true(json_integer_value(json_object_get(object, "line")) > 0);
        const char *time = json_string_value(json_object_get(object, "time"));
        assert_int_equal(strlen(time), strlen("2026-01-31T00:00:00.000Z"));
        assert_true(time[10] == 'T' && time[19] == '.' && time[23] == 'Z');
        json_decref(object);
        count++;
    }
    assert_int_equal(count, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_line_names_process_level_and_place),
        cmocka_unit_test(a_json_line_is_an_object_whatever_the_message_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
