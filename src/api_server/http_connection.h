// A connection and the exchange on it, as http_server.c and http_exchange.c share them.
//
// A `struct connection` is made as soon as evhttp has wrapped a new connection, before its first
// byte is read, and found by its descriptor; it goes with the connection. An exchange belongs to
// the connection until its answer has been handed over: then the evhttp request lives on by itself
// until the last byte is written.
#pragma once

#include <event2/bufferevent.h>
#include <event2/http.h>

#include "api_server/http_server.h"

enum {
    MAX_EARLY_BYTES = 64 << 10, // of the next requests, while one is being answered
};

struct http_counts {
    int32_t num_exchanges, num_unwritten;
};

struct connection {
    struct http_server *server;
    const struct http_server_options *options; // the server's
    struct http_counts *counts;                // the server's
    struct evhttp_connection *evcon;
    struct bufferevent *bev;
    bufferevent_data_cb evhttp_written; // evhttp's own, while ours stand in for them
    bufferevent_event_cb evhttp_event;
    int fd;
    bool idle;          // between two requests, no byte of the next one yet
    bool writing;       // the rest of an answer that is handed over
    bool ours;          // what is written belongs to an answer of ours
    bool refused;       // by evhttp: the rest of the request may still be on its way
    uint64_t num_taken; // bytes that the socket took
    struct http_exchange *exchange;
    char peer[64];
};

struct http_exchange {
    struct connection *connection;
    struct evhttp_request *request;
    char *path; // from evhttp_uridecode()
    size_t path_len;
    bool streaming;
    bool has_body; // the answer's: neither HEAD nor a status without one
    void (*on_close)(void *context);
    void *on_close_context;
};

/** How long reading and writing may stall; 0: for ever. */
void http_connection_set_timeouts(struct connection *connection, int32_t read_s, int32_t write_s);

/** Makes the exchange of a complete request and hands it to the owner of the server, or answers a
 *  request with a fault in its head. */
void http_exchange_start(struct connection *connection, struct evhttp_request *request);
/** Frees what is ours; the evhttp request is left alone. */
void http_exchange_forget(struct http_exchange *x);
