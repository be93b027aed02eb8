// Connections that were refused while their client was still sending: closed at once, the system
// would reset them, and a reset can overtake the answer that says why. So what still comes is read
// and thrown away, until the client ends or the time is up. Part of http_server.c.
#pragma once

struct event_base;
struct http_linger;

/** The connections of one server; ends with http_linger_destroy(), before its loop does. */
struct http_linger *http_linger_create(struct event_base *base);
void http_linger_destroy(struct http_linger *linger); // closes what is left

/** Keeps the socket behind `fd` open for a while; the descriptor itself stays the caller's, who
 *  closes it and has ended the sending side by then. */
void http_linger_add(struct http_linger *linger, int fd);
