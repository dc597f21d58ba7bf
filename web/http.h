/* The HTTP doors, on libmicrohttpd: the admin port (REST, and a small page; rest.md is its manual) and the probe port
 * (/livez, /readyz, /metrics).
 *
 * A door has two threads of libmicrohttpd's (the probe port one) and one that cuts slow clients off. None of them
 * touches the core: what concerns the store is asked by mail (door.h), with the methods of the binary protocol. Start,
 * stop and the setters are called on the core's thread. */
#ifndef WEB_HTTP_H
#define WEB_HTTP_H

#include "service/base/mailbox.h"
#include "service/server.h"

struct http;

enum http_face { HTTP_ADMIN, HTTP_PROBE };

struct http_config {
    struct server *server;           /* lent; touched on the core thread only */
    struct mailbox *mailbox;         /* lent; the core's */
    const char *token;               /* copied; NULL: none is asked for. The probe port never asks. */
    const char *hosts[4];            /* copied; names besides loopback's and numbers by which browsers may call this
                                      * machine, such as --advertise */
    struct http *beside;             /* probe: the admin door, whose requests /metrics counts; may be stopped first */
};

/* Listens on HOST:PORT (port 0: any). The address as bound is http_url. */
enum status http_start(const struct http_config *c, enum http_face face, const char *address, struct http **out,
                       struct error *e) MUST_CHECK;
const char *http_url(const struct http *h);
/* What /readyz answers. */
void http_set_ready(struct http *h, bool ready);
/* From now on this token is asked for; NULL: none. Nothing changes when there is no memory. */
enum status http_set_token(struct http *h, const char *token, struct error *e) MUST_CHECK;
/* Connections on which nothing moves are given up from now on. Requests are taken on. */
void http_drain(struct http *h);
/* No request is in hand. While the daemon drains, main waits for it. */
bool http_idle(const struct http *h);
/* Takes no further connection, answers requests that wait for the core with DRAINING, ends when the threads have. The
 * mailbox must be taken from once more afterwards. NULL is nothing. */
void http_stop(struct http *h);

#endif
