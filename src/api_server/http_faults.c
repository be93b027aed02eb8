// evhttp of version 2.1 answers the requests that it refuses before it tells anybody, with a page
// of HTML. It writes the status line first: that is seen by a callback of the output buffer, which
// takes the line back, writes a whole answer instead and closes the buffer's end, so that the rest
// of the page goes nowhere. evhttp then closes the connection as it would have.
#include "api_server/http_faults.h"

#include <stdlib.h>
#include <string.h>

#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>

#include "base/buf.h"
#include "base/log.h"

// ---- heads ---------------------------------------------------------------------------------

/** A header's name is a token (RFC 9110, section 5.6.2). */
static bool is_token(const char *text)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    if (*text == '\0')
        return false;
    for (; *text; text++) {
        char c = *text;
        bool alphanumeric =
            (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alphanumeric && !strchr(others, c))
            return false;
    }
    return true;
}

static bool is_digits(const char *text)
{
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

const char *http_faults_of_head(struct evhttp_request *request, int32_t max_header_count)
{
    int32_t num_headers = 0, num_lengths = 0, num_codings = 0, num_hosts = 0;
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(request);
    for (const struct evkeyval *h = headers->tqh_first; h; h = h->next.tqe_next) {
        num_headers++;
        if (!is_token(h->key))
            return "a malformed header name";
        if (strcasecmp(h->key, "Content-Length") == 0) {
            num_lengths++;
            if (!is_digits(h->value))
                return "a malformed Content-Length";
        } else if (strcasecmp(h->key, "Transfer-Encoding") == 0) {
            num_codings++;
            if (strcasecmp(h->value, "chunked") != 0)
                return "a Transfer-Encoding other than chunked";
        } else if (strcasecmp(h->key, "Host") == 0) {
            num_hosts++;
        }
    }
    if (num_headers > max_header_count)
        return "too many headers";
    if (num_lengths > 1 || num_codings > 1 || num_hosts > 1)
        return "a repeated header";
    if (num_lengths > 0 && num_codings > 0)
        return "both Content-Length and Transfer-Encoding";
    return NULL;
}

// ---- answers that evhttp has begun -----------------------------------------------------------

static const char *reason_of(int32_t status)
{
    switch (status) {
    case 400:
        return "a malformed request, or a head over its limit";
    case 413:
        return "a body over its limit";
    case 417:
        return "an Expect other than 100-continue";
    case 501:
        return "an unknown method";
    default:
        return http_status_phrase(status);
    }
}

/** The status of an answer whose first line is all that stands in the buffer, as evhttp begins it.
 *  0: that is not so, or it is no answer yet (100). */
static int32_t begun_status(struct evbuffer *output)
{
    char line[128];
    ev_ssize_t len = evbuffer_copyout(output, line, sizeof(line) - 1);
    if (len < 0)
        return 0;
    line[len] = '\0';
    const char *end = strstr(line, "\r\n");
    const char *code = strchr(line, ' ');
    if (!end || end + 2 != line + len || strncmp(line, "HTTP/1.", 7) != 0 || !code)
        return 0;
    long status = strtol(code, NULL, 10);
    return status >= 200 && status <= 599 ? (int32_t)status : 0;
}

bool http_faults_replace(struct evbuffer *output, const struct evbuffer_cb_info *info,
                         const struct http_server_options *options, struct str peer)
{
    if (info->orig_size != 0 || info->n_added == 0)
        return false;
    evbuffer_unfreeze(output, 1); // else only writing to the socket may look at the front
    int32_t status = begun_status(output);
    if (status > 0)
        evbuffer_drain(output, evbuffer_get_length(output));
    evbuffer_freeze(output, 1);
    if (status == 0)
        return false;
    struct buf body = {0}, answer = {0};
    options->on_fault(options->context, peer, status, reason_of(status), &body);
    buf_printf(&answer,
               "HTTP/1.1 %d %s\r\nServer: vllm.c\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\nConnection: close\r\n\r\n" STR_FORMAT,
               (int)status, http_status_phrase(status), body.len, STR_ARG(buf_str(&body)));
    evbuffer_add(output, answer.ptr, answer.len); // in one piece: it comes by here again
    evbuffer_freeze(output, 0);
    buf_deinit(&answer);
    buf_deinit(&body);
    return true;
}
