/* The keys that a handle has used: name -> id, type, shape, and how far this worker's pushes of them are.
 *
 * Turns: the pushes and sets of one key go out one after another, so that steps are recorded in order and a refused
 * one leaves no gap. Who wants to send for a key queues a `turn`; the first in the queue has it.
 *
 * Belongs to one engine; its thread rules hold. */
#ifndef API_CLIENT_KEYS_H
#define API_CLIENT_KEYS_H

#include "api/client/paramd.h"
#include "api/wire.h"
#include "gpu/dtype.h"
#include "service/base/list.h"
#include "service/base/map.h"

struct op;

/* A name as the wire has it. `text` is lent. */
struct key_name {
    uint8_t type;                /* KEY_INT or KEY_STR */
    int64_t number;
    struct bytes text;
};

struct key {
    struct key_name name;        /* its text is the key's own */
    size_t uses;                 /* by operations; an unknown key without uses is forgotten */
    uint64_t known;              /* the joining in which the description below was told; 0: never */
    bool uncertain;              /* something sent for it was lost: ask again before the next use */
    uint64_t id;
    enum dtype dtype;
    unsigned ndim;
    int64_t shape[DIMS_MAX];
    uint64_t size;               /* bytes of the value */

    uint64_t next_step;          /* of the next push */
    uint64_t recorded;           /* the last step that is */
    uint64_t told;               /* the last step of which the daemon has said so when it was asked */
    uint64_t applied;            /* the last step whose end has been told */

    struct list turns;           /* the first one has the turn */
    uint64_t begun, ended;       /* turns queued and given back so far */
    struct list quiet;           /* struct quiet: who waits for turns to end */

    uint64_t stamp;              /* the operation that looked at it last, and its index there: finds repeats */
    size_t slot;

    struct key *after;           /* the one that was looked up after it: a trainer goes through them in one order */
    uint64_t after_freed;        /* keys that had been freed by then; when it is not so many, `after` may be gone */
};

struct turn {
    struct list_node node;
    struct op *op;
    void (*have)(struct turn *t);        /* it has the turn now */
};

/* Waits until all turns that were queued when it began have ended. */
struct quiet {
    struct list_node node;
    struct op *op;
    uint64_t until;
};

struct keys;

enum status keys_new(const uint8_t seed[16], struct keys **out, struct error *e) MUST_CHECK;
void keys_free(struct keys *t);

/* Checks a key of the caller: its size, and UTF-8 without NUL. */
enum status key_name_of(const struct paramd_key *k, struct key_name *out, struct error *e) MUST_CHECK;
/* "3" or "\"w\"", cut to fit: for sentences. */
void key_name_text(const struct key_name *n, char *to, size_t size);
/* Integers by value, then names by bytes. */
int key_name_compare(const struct key_name *a, const struct key_name *b);

/* A key of the table, or NULL. */
struct key *keys_find(struct keys *t, const struct key_name *n);
/* Finds or adds a key and holds it for an operation until keys_release. */
enum status keys_hold(struct keys *t, const struct key_name *n, struct key **out, struct error *e) MUST_CHECK;
void keys_release(struct keys *t, struct key *k);
struct key *keys_next(const struct keys *t, size_t *at);         /* all of them, as map_next */

struct key_facts {
    uint64_t id;
    enum dtype dtype;
    unsigned ndim;
    const int64_t *shape;
    uint64_t next_step;
    bool tells_recorded;
    uint64_t recorded;           /* the last step of this worker that is */
};
/* What the daemon says about a key, in joining number `joining`. */
void key_learn(struct key *k, const struct key_facts *f, uint64_t joining);

/* Queues for the key's turn; true: t has it already (`have` is not called). */
bool key_turn_queue(struct key *k, struct turn *t);
/* Gives it back, or leaves the queue. The next one is told; those who wait for quiet are told by op_quiet. */
void key_turn_end(struct key *k, struct turn *t);
/* False: there is nothing to wait for, and q is not linked. */
bool key_quiet_wait(struct key *k, struct quiet *q);

#endif
