// The sockets that the launcher binds.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memory.h"
#include "entrypoints/listener.h"

static int32_t port_in(const char *url)
{
    return atoi(strrchr(url, ':') + 1);
}

static void port_zero_becomes_a_free_port(void **state)
{
    (void)state;
    struct listeners listeners;
    assert_int_equal(listeners_open(&listeners, "127.0.0.1", 0, NULL, 1, NULL), STATUS_OK);
    assert_true(port_in(listeners.url) > 0);
    int on = 0;
    socklen_t len = sizeof(on);
    getsockopt(listeners.fds[0], SOL_SOCKET, SO_ACCEPTCONN, &on, &len);
    assert_int_equal(on, 1);
    listeners_close(&listeners);
    listeners_close(&listeners); // and once more
}

static void several_servers_share_a_port(void **state)
{
    (void)state;
    struct listeners listeners;
    assert_int_equal(listeners_open(&listeners, "127.0.0.1", 0, NULL, 4, NULL), STATUS_OK);
    int32_t port = port_in(listeners.url);
    for (int32_t i = 0; i < 4; i++) {
        struct sockaddr_in address;
        socklen_t len = sizeof(address);
        assert_int_equal(getsockname(listeners.fds[i], (struct sockaddr *)&address, &len), 0);
        assert_int_equal(ntohs(address.sin_port), port);
    }
    listeners_close(&listeners);
}

static void an_address_in_use_is_named(void **state)
{
    (void)state;
    for (int32_t num = 1; num <= 2; num++) { // a foreign server that shares its port, too
        struct listeners first, second;
        struct error err = {0};
        assert_int_equal(listeners_open(&first, "127.0.0.1", 0, NULL, num, NULL), STATUS_OK);
        for (int32_t mine = 1; mine <= 2; mine++) {
            assert_int_equal(
                listeners_open(&second, "127.0.0.1", port_in(first.url), NULL, mine, &err),
                STATUS_UNAVAILABLE);
            assert_non_null(strstr(err.message, first.url));
            assert_non_null(strstr(err.message, "in use"));
        }
        listeners_close(&first);
    }
}

static void urls_say_what_was_bound(void **state)
{
    (void)state;
    static const struct {
        const char *host, *prefix;
    } cases[] = {
        {NULL, "http://0.0.0.0:"},
        {"", "http://0.0.0.0:"},
        {"localhost", "http://localhost:"},
        {"::1", "http://[::1]:"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct listeners listeners;
        struct error err = {0};
        enum status status = listeners_open(&listeners, cases[i].host, 0, NULL, 1, &err);
        if (status == STATUS_IO && cases[i].host && strchr(cases[i].host, ':'))
            continue; // a machine without IPv6
        assert_int_equal(status, STATUS_OK);
        assert_int_equal(strncmp(listeners.url, cases[i].prefix, strlen(cases[i].prefix)), 0);
        listeners_close(&listeners);
    }
}

static void impossible_addresses_are_refused_by_flag(void **state)
{
    (void)state;
    char long_path[300];
    memset(long_path, 'p', sizeof(long_path) - 1);
    long_path[sizeof(long_path) - 1] = '\0';
    static const char bad_host[] = "256.1.2.3";
    struct listeners listeners;
    struct error err = {0};
    assert_int_equal(listeners_open(&listeners, bad_host, 0, NULL, 1, &err), STATUS_INVALID);
    assert_string_equal(err.field, "--host");
    assert_non_null(strstr(err.message, bad_host));
    assert_int_equal(listeners_open(&listeners, NULL, 0, long_path, 1, &err), STATUS_INVALID);
    assert_string_equal(err.field, "--uds");
    assert_int_equal(listeners_open(&listeners, NULL, 0, NULL, MAX_API_SERVERS + 1, &err),
                     STATUS_INVALID);
    assert_string_equal(err.field, "--api-server-count");
}

static void a_stale_socket_file_is_replaced_and_a_live_one_is_not(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_listener.XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/socket", dir);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd); // nobody listens, and the file is still there

    struct listeners first, second;
    struct error err = {0};
    assert_int_equal(listeners_open(&first, NULL, 0, path, 3, NULL), STATUS_OK);
    assert_string_equal(first.url + strlen("unix:"), path);
    assert_int_equal(first.fds[0], first.fds[2]);
    assert_int_equal(listeners_open(&second, NULL, 0, path, 1, &err), STATUS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "another server"));
    assert_int_equal(access(path, F_OK), 0); // the failure took nothing away
    listeners_close(&first);
    assert_int_not_equal(access(path, F_OK), 0);

    fclose(fopen(path, "w"));
    assert_int_equal(listeners_open(&second, NULL, 0, path, 1, &err), STATUS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "no socket"));
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(port_zero_becomes_a_free_port),
        cmocka_unit_test(several_servers_share_a_port),
        cmocka_unit_test(an_address_in_use_is_named),
        cmocka_unit_test(urls_say_what_was_bound),
        cmocka_unit_test(impossible_addresses_are_refused_by_flag),
        cmocka_unit_test(a_stale_socket_file_is_replaced_and_a_live_one_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
