/* An event loop on epoll: descriptors with callbacks, and work put off to the end of the turn. One thread; other
 * threads reach it through a mailbox whose descriptor is watched. Deadlines are the caller's: it says how long a turn
 * may wait. */
#ifndef SERVICE_BASE_LOOP_H
#define SERVICE_BASE_LOOP_H

#include "service/base/list.h"
#include "service/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct loop;

/* Lies in the owner's struct; the loop's from loop_add to loop_remove. */
struct watch {
    int fd;
    uint32_t events;                                 /* EPOLLIN, EPOLLOUT */
    void (*ready)(struct watch *w, uint32_t events); /* may remove and free any watch, its own included */
};

/* Work put off until whoever asked for it has returned. Lies in the owner's struct, zeroed before its first use; the
 * loop's until it has run. list_remove(&task->node) takes it back. */
struct loop_task {
    struct list_node node;
    void (*run)(struct loop_task *t);
};

enum status loop_new(struct loop **out, struct error *e) MUST_CHECK;
void loop_free(struct loop *l);                  /* watches and tasks that are left are forgotten. NULL is nothing */
enum status loop_add(struct loop *l, struct watch *w, uint32_t events, struct error *e) MUST_CHECK;
void loop_change(struct loop *l, struct watch *w, uint32_t events);      /* nothing when they are the same */
void loop_remove(struct loop *l, struct watch *w);                       /* before its descriptor is closed */

/* Asked after each callback and task of a turn: true puts the others off to the next turn, which begins with them. So a
 * turn is as long as its owner lets it be, however many descriptors are ready. ctx is lent. */
void loop_bound(struct loop *l, bool (*is_spent)(void *ctx), void *ctx);

/* Runs t once, after the callbacks of this turn, or before the next one waits. Nothing when it is asked for already. */
void loop_later(struct loop *l, struct loop_task *t);

/* Waits until something is ready, at most timeout_ms (-1: without end), and calls what is ready. Does not wait when
 * callbacks of the last turn were put off. May not be called from a callback. */
void loop_turn(struct loop *l, int timeout_ms);

#endif
