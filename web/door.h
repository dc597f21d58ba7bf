/* The web's own connection to the server, as any client has one: the frames of the binary protocol, passed by mail
 * instead of a socket. So REST has the same methods, checks and errors as every other door, and no thread but the
 * core's touches the core. The connection is an operator's (peer_ops.admin): it inits without having joined.
 *
 * door_open and door_close run on the core's thread. door_call and door_json run on any other and wait, at most for the
 * given time; one core turn answers most methods. What they are given is copied. */
#ifndef WEB_DOOR_H
#define WEB_DOOR_H

#include "service/base/mailbox.h"
#include "service/server.h"

#include <jansson.h>

struct door;

enum { DOOR_WAIT_MS = 2000 };

enum status door_open(struct server *s, struct mailbox *m, const char *token, struct door **out,
                      struct error *e) MUST_CHECK;
/* Whoever waits, or asks from now on, is told DRAINING. Once or more often; NULL is nothing. */
void door_close(struct door *d);
/* A closed one, when nobody can ask any more. Mail that still lies in the box keeps what it needs. NULL is nothing. */
void door_free(struct door *d);

struct question {
    unsigned method;
    uint32_t flags;
    struct bytes fixed, desc, body;
    unsigned wait_ms;                /* 0: DOOR_WAIT_MS */
};

/* What was answered with status OK; an error comes back as the status of the call. */
struct reply {
    struct buf bytes;                /* owned; the rest lies in it */
    struct bytes fixed, desc, body;
};

/* DEADLINE: the core is busy, and what was asked may still be done. LIMIT: its mailbox is full. DRAINING: closed. */
enum status door_call(struct door *d, const struct question *q, struct reply *out, struct error *e) MUST_CHECK;
void reply_fini(struct reply *r);
/* A JSON method. Takes `in` (NULL: there was no memory for it). */
enum status door_json(struct door *d, unsigned method, json_t *in, unsigned wait_ms, json_t **out,
                      struct error *e) MUST_CHECK;

#endif
