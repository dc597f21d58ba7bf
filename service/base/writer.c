#include "service/base/writer.h"

#include "service/base/mem.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK_SIZE = 4096 };          /* a pipe takes as much in one piece, not mixed with other writers' */

struct writer {
    int fd;
    size_t size;
    writer_tell *tell;
    pthread_t thread;
    pthread_mutex_t lock;            /* guards all below; never held across a write */
    pthread_cond_t changed;
    uint64_t head, tail;             /* bytes added and taken, since the start */
    uint64_t lost;                   /* lines that are still to be told of */
    uint64_t lost_at;                /* where in the stream they are missing */
    uint64_t lost_in_all;
    bool broken;                     /* the last write failed; the next line tries again */
    bool stop, done;
    bool left;                       /* by writer_stop: the thread frees it */
    char ring[];
};

/* ---- the queue -------------------------------------------------------------------------------------------------- */

static void ring_put(struct writer *w, const char *from, size_t size)
{
    size_t at = (size_t)(w->head % w->size), first = size < w->size - at ? size : w->size - at;

    memcpy(w->ring + at, from, first);
    memcpy(w->ring, from + first, size - first);
    w->head += size;
}

static char ring_at(const struct writer *w, uint64_t position) { return w->ring[position % w->size]; }

static void count_lost(struct writer *w, uint64_t lines)
{
    w->lost += lines;
    w->lost_in_all += lines;
}

/* Once lines are missing, none is taken until half of the queue is free: else every few lines a gap would be told. */
static bool has_room(const struct writer *w, size_t size)
{
    size_t used = (size_t)(w->head - w->tail);
    return w->lost > 0 && !w->broken ? used <= w->size / 2 : size <= w->size - used;
}

bool writer_add(struct writer *w, const char *line, size_t size)
{
    assert(size > 0 && size <= WRITER_LINE_MAX && line[size - 1] == '\n');
    pthread_mutex_lock(&w->lock);
    bool fits = has_room(w, size);
    if (fits) {
        ring_put(w, line, size);
        pthread_cond_signal(&w->changed);
    } else {
        if (w->lost == 0) w->lost_at = w->head;
        count_lost(w, 1);
    }
    pthread_mutex_unlock(&w->lock);
    return fits;
}

uint64_t writer_lost(struct writer *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t lost = w->lost_in_all;
    pthread_mutex_unlock(&w->lock);
    return lost;
}

/* ---- the thread ------------------------------------------------------------------------------------------------- */

/* What is written in one piece: as many whole lines as fit a chunk, or one longer line. */
struct chunk {
    uint64_t lines;                  /* of the queue */
    uint64_t told;                   /* missing lines that it tells of */
    size_t size;
    char text[WRITER_LINE_MAX];
};

static bool gap_is_due(const struct writer *w) { return w->lost > 0 && !w->broken && w->tail >= w->lost_at; }

static void take_lines(struct writer *w, struct chunk *c)
{
    uint64_t end = w->lost > 0 && w->lost_at > w->tail ? w->lost_at : w->head;

    for (uint64_t at = w->tail; at < end && (c->lines == 0 || at - w->tail < CHUNK_SIZE); at++) {
        c->text[at - w->tail] = ring_at(w, at);
        if (ring_at(w, at) != '\n') continue;
        c->size = (size_t)(at + 1 - w->tail);
        c->lines++;
    }
    w->tail += c->size;
}

/* Waits for something to write; false: all is written and no more comes. */
static bool take(struct writer *w, struct chunk *c)
{
    c->lines = c->told = c->size = 0;
    pthread_mutex_lock(&w->lock);
    while (w->head == w->tail && !gap_is_due(w) && !w->stop) pthread_cond_wait(&w->changed, &w->lock);
    if (gap_is_due(w)) {
        c->told = w->lost;
        w->lost = 0;
    } else {
        take_lines(w, c);
    }
    pthread_mutex_unlock(&w->lock);
    if (c->told > 0 && w->tell != NULL) c->size = w->tell(c->text, c->told);
    return c->told > 0 || c->size > 0;
}

/* A descriptor that was inherited with O_NONBLOCK is waited for. */
static bool write_all(int fd, const char *at, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, at, size);
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        if (n < 0 && errno == EAGAIN) n = poll(&room, 1, -1) < 0 && errno != EINTR ? -1 : 0;
        else if (n < 0 && errno == EINTR) n = 0;
        if (n < 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static void settle(struct writer *w, const struct chunk *c, bool written)
{
    pthread_mutex_lock(&w->lock);
    w->broken = !written;
    if (!written) {
        w->lost += c->told;
        count_lost(w, c->lines);
        w->lost_at = w->tail;
    }
    pthread_mutex_unlock(&w->lock);
}

static void writer_free(struct writer *w)
{
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    mem_free(w);
}

static void *run(void *ctx)
{
    struct writer *w = ctx;
    struct chunk c;

    while (take(w, &c)) settle(w, &c, write_all(w->fd, c.text, c.size));
    pthread_mutex_lock(&w->lock);
    w->done = true;
    bool left = w->left;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (left) writer_free(w);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* The core's thread takes signals by signalfd: no other may get them. With SIGPIPE held back a closed pipe is EPIPE. */
static int start_without_signals(struct writer *w)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}

enum status writer_start(int fd, size_t size, writer_tell *tell, struct writer **out, struct error *e)
{
    struct writer *w = mem_zero(sizeof *w + size);
    pthread_condattr_t monotonic;

    assert(size >= WRITER_SIZE_MIN);
    if (w == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a queue of lines");
    w->fd = fd;
    w->size = size;
    w->tell = tell;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int why = start_without_signals(w);
    if (why == 0) {
        *out = w;
        return STATUS_OK;
    }
    writer_free(w);
    return error_set(e, REASON_SYSTEM, "no thread that writes lines: %s", strerror(why));
}

void writer_stop(struct writer *w, uint64_t until_ms)
{
    struct timespec until = {.tv_sec = (time_t)(until_ms / 1000), .tv_nsec = (long)(until_ms % 1000) * 1000000};
    int why = 0;

    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->changed);
    while (!w->done && why == 0) why = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    bool done = w->done;
    pthread_t thread = w->thread;
    w->left = !done;                         /* then the thread frees w when the write that holds it up returns */
    pthread_mutex_unlock(&w->lock);
    if (!done) {
        pthread_detach(thread);
        return;
    }
    pthread_join(w->thread, NULL);
    writer_free(w);
}
