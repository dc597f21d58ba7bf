/* An event loop on epoll: descriptors with callbacks, and one deadline. One thread; other threads reach it through
 * a mailbox whose descriptor is watched. */
#ifndef SERVICE_BASE_LOOP_H
#define SERVICE_BASE_LOOP_H

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

enum status loop_new(struct loop **out, struct error *e) MUST_CHECK;
void loop_free(struct loop *l);
enum status loop_add(struct loop *l, struct watch *w, uint32_t events, struct error *e) MUST_CHECK;
void loop_change(struct loop *l, struct watch *w, uint32_t events);      /* nothing when they are the same */
void loop_remove(struct loop *l, struct watch *w);

/* Waits until something is ready, at most timeout_ms, and calls what is ready. */
void loop_turn(struct loop *l, int timeout_ms);

#endif
