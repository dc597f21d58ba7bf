/* Who moves a handle: the thread that waits for an operation polls the links itself, so that a small call changes no
 * thread. Only one drives at a time; others that wait sleep until their operation is finished or it is their turn.
 * A background thread (of handles on a daemon) sends heartbeats, and drives while operations are outstanding and
 * nobody waits. Waking it costs more than a small request: it gives a caller who waits now and then a moment before it
 * steps in, and small requests that follow others under way stay in the queue until somebody drives, so that they
 * leave together.
 *
 * The handle's one lock is held by whoever is inside the engine and released while polling. */
#ifndef API_CLIENT_DRIVE_H
#define API_CLIENT_DRIVE_H

#include "api/client/engine.h"
#include "api/client/type.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

struct seat;

struct paramd {
    pthread_mutex_t lock;
    pthread_cond_t turn;         /* for those who wait: something has finished, or nobody drives */
    pthread_cond_t idle;         /* for the background thread: something is to be done */
    unsigned forks;              /* before it was opened */
    struct client_type type;
    struct client_options options;
    struct engine *engine;
    struct link *links[LANES_MAX];
    unsigned link_count;
    int kick;                    /* an eventfd that wakes who polls; -1: none */

    bool driving, background_drives;
    unsigned waiters;
    unsigned sliced;             /* calls of many slices that wait */
    uint64_t turns;              /* of threads that waited */
    uint64_t poll_until;         /* while somebody drives: when he wakes by himself, and what he polls */
    struct pollfd polled[1 + LANES_MAX * LINK_FDS_MAX];
    unsigned polled_count;
    bool has_thread, stopping;
    bool minding;                /* the background thread looks again in a moment */
    pthread_t thread;

    pthread_mutex_t seat_lock;   /* taken before `lock` */
    struct seat *seat;           /* on the plane, or NULL; seat.h */

    paramd_update *function;     /* the updater of a private store; NULL: the store's own */
    void *function_ctx;
    atomic_bool inside;          /* the function is running, on inside_thread */
    pthread_t inside_thread;
};

/* Opens the links and (for a daemon) starts the thread. options are taken also when this fails. */
enum status drive_new(const struct client_type *type, struct client_options *options, struct paramd **out,
                      struct error *e) MUST_CHECK;
void drive_free(struct paramd *kv);

/* Locks the handle and tells the engine the time. FORKED in another process, REENTRANT from inside the updater:
 * then it is not locked. */
enum status drive_enter(struct paramd *kv, struct error *e) MUST_CHECK;
/* Sends what was begun meanwhile, has somebody look after it, and unlocks. */
void drive_leave(struct paramd *kv);
/* Whether this is a child of the process that opened the handle, made by fork(). */
bool drive_has_forked(const struct paramd *kv);
/* Between the two: waits until the operation is finished, at most until the time. */
void drive_until(struct paramd *kv, const struct op *op, uint64_t until_ms);

#endif
