/* The server: frames in, answers out, and between them the core. It has no I/O, no clock and no locks, so the daemon's
 * doors, an embedded store and a simulation drive the same code.
 *
 * How a push travels: a door reads the head of a frame -> server_place decodes it, the core decides (quota, shape,
 * duplicate) and lends staging memory; frames of many entries and pushes up to PUSH_NOW_SIZE go to scratch -> the door
 * reads the bytes to that place -> server_frame tells the core, which records the contribution, gives its sum to the
 * device and answers "recorded". A pull: server_frame finds the newest version and answers with a segment that lies in
 * it; the version is held until the segment is sent.
 *
 * One thread calls everything here (the core thread). Nothing waits. */
#ifndef SERVICE_SERVER_H
#define SERVICE_SERVER_H

#include "api/sp.h"
#include "gpu/group_nccl.h"
#include "service/core.h"

struct server;
struct peer;

/* What the core takes from outside; copied. */
struct server_config {
    struct device *device;           /* lent; outlives the server */
    uint8_t seed[16];                /* of hash maps */
    struct wire_id instance;         /* random: names this life of the daemon */
    uint64_t staging_max;            /* bytes that pushes may hold in all; 0: a quarter of the machine's memory */
    const char *token;               /* lent; NULL: none is asked for */
    bool embedded;                   /* in the caller's process: stores are private, time-outs do not run */
    unsigned bulk_port;              /* told to clients in HELLO; 0: no bulk door. May be set later. */
    const char *bulk_path;           /* lent; of a Unix socket, instead */
    const struct nccl *nccl;         /* for planes, lent; NULL: opened when the first one is wanted */
    const char *advertise;           /* lent; host that clients shall dial, or NULL: the one they dialled */
    const char *host;                /* lent; which machine this is (service/base/host.h); NULL: no mailboxes */
};

/* What a door can do with a connection; `link` is the door's. All calls come from within server_ calls. */
struct peer_ops {
    const char *door;                /* "nanomsg", "sp", "direct", "web" */
    bool admin;                      /* an operator's: may Init and Set without having joined */
    bool one_large_answer;           /* libnanomsg's REP: one answer above REP_IN_FLIGHT_REPLY_MAX at a time */
    void (*answer)(void *link, struct outgoing *o);          /* takes o until o->done */
    void (*detach)(void *link, const void *owner);           /* sp_detach; a failure closes the connection */
    void (*discard)(void *link);                             /* sp_discard */
    void (*hang_up)(void *link);                             /* ends it once the answer is out; NULL: it cannot */
    void (*bound)(void *link, size_t frame_max);             /* sp_set_soft_max; NULL: frames are whole when they come */
    /* The request in hand goes on in later turns: its memory, and what follows it on the connection, wait until `on` is
     * false again. NULL: a request that works on its frame is done when server_frame returns, however long it is, and
     * others are not kept in order. */
    void (*hold)(void *link, bool on);
};

enum status server_new(const struct server_config *c, uint64_t now_ms, struct server **out, struct error *e) MUST_CHECK;
void server_free(struct server *s);          /* all peers must be gone */
void server_set_bulk(struct server *s, unsigned port, const char *path);
/* From now on; what is held already stays. staging_max 0: a quarter of the machine's memory. */
void server_set_limits(struct server *s, uint64_t staging_max, const struct core_limits *limits);
/* For those who come from now on; clients that have said HELLO stay. token: taken, from mem_text; NULL: none is asked
 * for. */
void server_give_token(struct server *s, char *token);
void server_drain(struct server *s);         /* refuses new pushes with DRAINING; finishes what is recorded */

/* A connection begins and ends. `address` is copied, for logs. */
enum status server_peer_new(struct server *s, const struct peer_ops *ops, void *link, const char *address,
                            struct peer **out, struct error *e) MUST_CHECK;
void server_peer_gone(struct peer *p);
/* So many connections were refused, or ended for a fault of theirs; for Stats. */
void server_count_refused(struct server *s, enum reason why, uint64_t count);

/* The head of a request is here: where does its body go? Called once a frame that has a body. */
enum placement server_place(struct peer *p, const struct incoming *in, void **at);
/* A request is whole (in->body is NULL when server_place said PLACE_DROP or discard was called). Always leads to
 * exactly one answer, at once or later. Not for a connection that is held. */
void server_frame(struct peer *p, const struct incoming *in);

/* A turn of the daemon's loop begins: what earlier ones have left goes on (core_turn). Without turns nothing is bounded. */
void server_turn(struct server *s);
/* The turn's work is spent: what comes in has to wait for the next turn. For loop_bound and mailbox_bound. */
bool server_is_spent(void *server);
/* Something is left for the next turn, which therefore must not wait. */
bool server_has_work(const struct server *s);
/* The processor time of the longest turn so far, as the loop has measured it; for Stats. */
void server_tell_turn(struct server *s, uint64_t ns);

/* Time has come to now_ms; answers when the next deadline is (UINT64_MAX: none). */
uint64_t server_tick(struct server *s, uint64_t now_ms);
/* Marks of the device may have passed. */
void server_poll(struct server *s);
/* Work of the device is outstanding; server_settle blocks until it is not (embedded stores, drain). */
bool server_busy(const struct server *s);
void server_settle(struct server *s);

#endif
