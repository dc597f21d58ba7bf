/* The HTTP doors, on libmicrohttpd: the admin port (JSON) and the probe port (is it alive, is it ready).
 *
 * libmicrohttpd answers on a thread of its own. What concerns the store is asked of the core by mail: the web thread
 * posts it and waits for its answer, for a bounded time. Start and stop on the main thread. */
#ifndef WEB_HTTP_H
#define WEB_HTTP_H

#include "service/base/mailbox.h"
#include "service/server.h"

struct http;

enum http_face { HTTP_ADMIN, HTTP_PROBE };

struct http_config {
    struct server *server;           /* lent; touched on the core thread only */
    struct mailbox *mailbox;         /* lent; the core's */
    const char *token;               /* lent; NULL: none is asked for. The probe port never asks. */
};

/* Listens on HOST:PORT (port 0: any). The address as bound is http_url. */
enum status http_start(const struct http_config *c, enum http_face face, const char *address, struct http **out,
                       struct error *e) MUST_CHECK;
const char *http_url(const struct http *h);
/* What /readyz answers. Any thread. */
void http_set_ready(struct http *h, bool ready);
/* Returns when no request is being answered. The mailbox must still be taken from until then, or be closed before:
 * requests wait at most two seconds. NULL is nothing. */
void http_stop(struct http *h);

#endif
