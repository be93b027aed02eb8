// Handshakes that do not come to an end: the connection is closed when its time is over, and costs
// others nothing.
#include "cmocka_setup.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "api_server/http_server.h"
#include "api_server/tls.h"
#include "base/clock.h"
#include "base/memory.h"

enum { TIMEOUT_S = 1 };

static struct {
    char path[64]; // certificate and key in one file
    struct tls *tls;
    struct http_server *server;
    pthread_t thread;
    int listen_fd, port;
    int stop_fds[2];
} env;

static void write_certificate(const char *path)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    assert_non_null(key);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_set_pubkey(certificate, key);
    X509_NAME *name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    PEM_write_X509(file, certificate);
    fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static void on_fault(void *context, struct str peer, int32_t status, const char *reason,
                     struct buf *body)
{
    (void)context;
    buf_printf(body, "{\"peer\":%d,\"status\":%d,\"reason\":\"%s\"}", peer.len > 1, (int)status,
               reason);
}

static void on_request(void *context, struct http_exchange *x)
{
    (void)context;
    http_exchange_reply(x, 200, "text/plain", STR("hello"));
}

static void on_stop(void *context)
{
    (void)context;
    http_server_stop(env.server);
}

static void *run(void *context)
{
    http_server_run(env.server);
    return context;
}

static int start(void **state)
{
    (void)state;
    snprintf(env.path, sizeof(env.path), "/tmp/test_tls_XXXXXX");
    int fd = mkstemp(env.path);
    close(fd);
    write_certificate(env.path);
    struct serve_options options = {.ssl_certfile = env.path};
    struct error err = {0};
    if (tls_create(&env.tls, &options, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    env.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(env.listen_fd, (struct sockaddr *)&address, len) != 0 ||
        listen(env.listen_fd, 16) != 0 || pipe(env.stop_fds) != 0 ||
        getsockname(env.listen_fd, (struct sockaddr *)&address, &len) != 0)
        return -1;
    env.port = ntohs(address.sin_port);
    const struct http_server_options http = {
        .max_header_count = 16,
        .max_header_bytes = 4096,
        .max_body_bytes = 4096,
        .keep_alive_timeout_s = TIMEOUT_S,
        .body_timeout_s = TIMEOUT_S,
        .tls = env.tls,
        .on_request = on_request,
        .on_fault = on_fault,
    };
    if (http_server_create(&env.server, env.listen_fd, &http, NULL) != STATUS_OK ||
        http_server_watch(env.server, env.stop_fds[0], on_stop, NULL) != STATUS_OK)
        return -1;
    return pthread_create(&env.thread, NULL, run, NULL);
}

static int stop(void **state)
{
    (void)state;
    if (write(env.stop_fds[1], "x", 1) != 1 || pthread_join(env.thread, NULL) != 0)
        return -1;
    http_server_destroy(env.server);
    tls_destroy(env.tls);
    close(env.listen_fd);
    close(env.stop_fds[0]);
    close(env.stop_fds[1]);
    unlink(env.path);
    return 0;
}

static int connect_client(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)env.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/** Milliseconds until the server closes the connection; -1: it has not after 10 s. */
static int64_t ms_until_closed(int fd)
{
    int64_t start_ns = clock_monotonic_ns();
    char bytes[512];
    for (;;) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        if (poll(&item, 1, 10000) != 1)
            return -1;
        if (read(fd, bytes, sizeof(bytes)) <= 0)
            return (clock_monotonic_ns() - start_ns) / 1000000;
    }
}

/** Asks over TLS; the answer's first bytes. */
static void ask(char *answer, int size)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *session = SSL_new(context);
    int fd = connect_client();
    SSL_set_fd(session, fd);
    assert_int_equal(SSL_connect(session), 1);
    static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_int_equal(SSL_write(session, request, sizeof(request) - 1), sizeof(request) - 1);
    int len = SSL_read(session, answer, size - 1);
    answer[len > 0 ? len : 0] = '\0';
    SSL_free(session);
    SSL_CTX_free(context);
    close(fd);
}

static void a_client_that_says_nothing_is_cut_off(void **state)
{
    (void)state;
    int fd = connect_client();
    int64_t ms = ms_until_closed(fd);
    assert_in_range(ms, TIMEOUT_S * 1000 - 100, TIMEOUT_S * 1000 + 4000);
    close(fd);
}

static void a_handshake_that_stops_half_way_is_cut_off(void **state)
{
    (void)state;
    int fd = connect_client();
    const char head[] = {0x16, 0x03, 0x01, 0x00, (char)0xC8, 0x01}; // of a ClientHello
    assert_int_equal(write(fd, head, sizeof(head)), sizeof(head));
    int64_t ms = ms_until_closed(fd);
    assert_in_range(ms, TIMEOUT_S * 1000 - 100, TIMEOUT_S * 1000 + 4000);
    close(fd);
}

static void bytes_that_are_no_handshake_end_the_connection_at_once(void **state)
{
    (void)state;
    int fd = connect_client();
    assert_int_equal(write(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27), 27);
    assert_in_range(ms_until_closed(fd), 0, TIMEOUT_S * 1000 - 100);
    close(fd);
}

static void others_are_served_meanwhile(void **state)
{
    (void)state;
    int stuck[8];
    for (int i = 0; i < 8; i++)
        stuck[i] = connect_client();
    char answer[256];
    ask(answer, sizeof(answer));
    assert_non_null(strstr(answer, "HTTP/1.1 200"));
    for (int i = 0; i < 8; i++)
        close(stuck[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_says_nothing_is_cut_off),
        cmocka_unit_test(a_handshake_that_stops_half_way_is_cut_off),
        cmocka_unit_test(bytes_that_are_no_handshake_end_the_connection_at_once),
        cmocka_unit_test(others_are_served_meanwhile),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
