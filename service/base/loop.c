#include "service/base/loop.h"

#include "service/base/mem.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { BATCH = 128 };        /* more than so many ready at once: the rest comes in the next turn */

struct loop {
    int fd;
    struct list tasks;
    struct loop_task mark;   /* in the list while tasks run: behind it are those of the next turn */
    struct epoll_event batch[BATCH];
    int batch_count;         /* of the turn in progress, or of one that was cut short */
    int batch_at;            /* those before it have been called */
    bool turning;
    bool (*is_spent)(void *ctx);     /* NULL: nothing bounds a turn */
    void *ctx;
};

enum status loop_new(struct loop **out, struct error *e)
{
    struct loop *l = mem_zero(sizeof *l);

    if (l == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for an event loop");
    list_init(&l->tasks);
    l->fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->fd < 0) {
        enum status s = error_set(e, REASON_SYSTEM, "no event loop: %s", strerror(errno));
        mem_free(l);
        return s;
    }
    *out = l;
    return STATUS_OK;
}

void loop_free(struct loop *l)
{
    if (l == NULL) return;
    close(l->fd);
    mem_free(l);
}

enum status loop_add(struct loop *l, struct watch *w, uint32_t events, struct error *e)
{
    struct epoll_event event = {.events = events, .data.ptr = w};

    if (epoll_ctl(l->fd, EPOLL_CTL_ADD, w->fd, &event) != 0)
        return error_set(e, REASON_SYSTEM, "descriptor %d cannot be watched: %s", w->fd, strerror(errno));
    w->events = events;
    return STATUS_OK;
}

void loop_change(struct loop *l, struct watch *w, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = w};

    if (w->events == events) return;
    int done = epoll_ctl(l->fd, EPOLL_CTL_MOD, w->fd, &event);
    assert(done == 0);       /* fails only for a descriptor that is not there */
    (void)done;
    w->events = events;
}

/* What the present batch still has for w is struck out: w may be freed, and its address used again, at once. */
void loop_remove(struct loop *l, struct watch *w)
{
    (void)epoll_ctl(l->fd, EPOLL_CTL_DEL, w->fd, NULL);
    w->events = 0;
    for (int i = 0; i < l->batch_count; i++)
        if (l->batch[i].data.ptr == w) l->batch[i].data.ptr = NULL;
}

void loop_bound(struct loop *l, bool (*is_spent)(void *ctx), void *ctx)
{
    l->is_spent = is_spent;
    l->ctx = ctx;
}

void loop_later(struct loop *l, struct loop_task *t)
{
    if (!list_linked(&t->node)) list_append(&l->tasks, &t->node);
}

static bool is_spent(const struct loop *l) { return l->is_spent != NULL && l->is_spent(l->ctx); }

/* The tasks that are there now; what they put off themselves comes in the next turn, so that none can keep the loop
 * from its descriptors. A mark and no count tells where to stop, because a task may take back others. */
static void run_tasks(struct loop *l)
{
    if (list_empty(&l->tasks)) return;
    list_append(&l->tasks, &l->mark.node);
    for (struct loop_task *t; (t = LIST_FIRST(struct loop_task, node, &l->tasks)) != &l->mark;) {
        list_remove(&t->node);
        t->run(t);
        if (is_spent(l)) break;
    }
    list_remove(&l->mark.node);
}

/* What is left of the last turn comes first: else those that the kernel names first could keep the others out. */
static void fill_batch(struct loop *l, int timeout_ms)
{
    if (l->batch_at < l->batch_count) return;
    int count = epoll_wait(l->fd, l->batch, BATCH, list_empty(&l->tasks) ? timeout_ms : 0);
    l->batch_count = count > 0 ? count : 0;
    l->batch_at = 0;
}

void loop_turn(struct loop *l, int timeout_ms)
{
    assert(!l->turning);
    l->turning = true;
    run_tasks(l);
    fill_batch(l, timeout_ms);
    while (l->batch_at < l->batch_count) {
        const struct epoll_event *at = &l->batch[l->batch_at++];
        struct watch *w = at->data.ptr;
        if (w == NULL) continue;
        w->ready(w, at->events);
        if (is_spent(l)) break;
    }
    run_tasks(l);
    l->turning = false;
}
