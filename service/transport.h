/* The doors: two engines that carry frames between sockets and the server.
 *
 *   transport_sp       our own engine on epoll, runs in the core's loop (bulk door, or any address)
 *   transport_nanomsg  libnanomsg: one raw REP socket, a thread of its own that receives; answers are sent from the
 *                      core thread (nn_sendmsg on raw REP copies and never blocks)
 *
 * All functions are called on the core thread. */
#ifndef SERVICE_TRANSPORT_H
#define SERVICE_TRANSPORT_H

#include "service/base/loop.h"
#include "service/base/mailbox.h"
#include "service/server.h"

struct transport;

/* What a door calls. */
struct transport_server {
    enum status (*peer_new)(struct server *s, const struct peer_ops *ops, void *link, const char *address,
                            struct peer **out, struct error *e);
    void (*peer_gone)(struct peer *p);
    enum placement (*place)(struct peer *p, const struct incoming *in, void **at);
    void (*frame)(struct peer *p, const struct incoming *in);
    void (*refused)(struct server *s, enum reason why, uint64_t count);  /* connections; may be NULL */
    bool (*is_spent)(void *server);  /* the rest waits for the next turn; may be NULL */
};

struct transport_config {
    struct server *server;       /* lent */
    const struct transport_server *calls;    /* static; NULL: server.h's. Tests of the doors have their own. */
    struct loop *loop;           /* lent */
    struct mailbox *mailbox;     /* lent; the core's (nanomsg only) */
    uint64_t (*now_ms)(void);
    unsigned connections_max;    /* 0: CONNECTIONS_MAX */
    unsigned address_max;        /* of them, from one address; 0: a quarter, if the line above was 0 too */
};

/* Opens `url`: tcp://HOST:PORT (port 0: any free one), ipc:///PATH; sp knows unix:///PATH as the same as ipc. */
enum status transport_sp_open(const struct transport_config *c, const char *url, struct transport **out,
                              struct error *e) MUST_CHECK;
enum status transport_nanomsg_open(const struct transport_config *c, const char *url, struct transport **out,
                                   struct error *e) MUST_CHECK;
/* The address as bound, with the real port; lent. */
const char *transport_url(const struct transport *t);
unsigned transport_port(const struct transport *t);      /* 0 for a Unix socket */
unsigned transport_connections(const struct transport *t);
uint64_t transport_refused(const struct transport *t);   /* connections ended for a fault of the peer */
/* Deadlines of connections (greeting, progress); answers when the next one is. */
uint64_t transport_tick(struct transport *t, uint64_t now_ms);
/* No new connections and no more reading; what is queued goes out, but for who takes nothing for DRAIN_STILL_MS. */
void transport_drain(struct transport *t);
bool transport_idle(const struct transport *t);          /* nothing left to send */
void transport_close(struct transport *t);               /* NULL is nothing */

#endif
