#include "web/reaper.h"

#include "api/limits.h"
#include "service/base/clock.h"
#include "service/base/log.h"
#include "service/base/mem.h"
#include "service/transport_origin.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

enum { LOOK_MS = 500 };

struct line {
    struct list_node node;
    struct reaper *reaper;
    int fd;
    enum line_phase phase;
    uint64_t since_ms;               /* the phase, or the present stretch of it, began */
    uint64_t bytes;                  /* that had moved then */
    uint64_t seen, seen_ms;          /* while draining: bytes that had moved, and since when no more */
    unsigned wrong_tokens;
    uint8_t origin[ORIGIN_SIZE_MAX]; /* the address, as transport_origin.h has it */
    size_t origin_size;
    bool cut;
};

struct reaper {
    pthread_mutex_t lock;            /* guards all below up to thread */
    pthread_cond_t changed;
    struct list lines;
    bool stop, draining;
    pthread_t thread;
    _Atomic uint64_t *cuts;
    struct reaper_bounds bounds;
};

const char *const line_phase_names[LINE_PHASES] = {"headers", "body", "working", "answer", "idle"};

/* How long a phase, or a stretch of it, may last, and how many bytes must move in it. */
static const struct { uint64_t time_ms, bytes; } allowed[LINE_PHASES] = {
    [LINE_HEADERS] = {HEADERS_MS, UINT64_MAX},
    [LINE_BODY] = {BODY_MS, (uint64_t)RATE_MIN * BODY_MS / 1000},
    [LINE_WORKING] = {UINT64_MAX, 0},
    [LINE_ANSWER] = {ANSWER_MS, (uint64_t)RATE_MIN * ANSWER_MS / 1000},
    [LINE_IDLE] = {IDLE_MS, UINT64_MAX},
};

static uint64_t moved(const struct line *l)
{
    struct tcp_info info = {.tcpi_state = 0};
    socklen_t size = sizeof info;

    if (getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
    return l->phase == LINE_BODY ? info.tcpi_bytes_received : info.tcpi_bytes_acked;
}

static void cut(struct reaper *r, struct line *l)
{
    l->cut = true;
    atomic_fetch_add(&r->cuts[l->phase], 1);
    log_debug("http", "a connection is too slow, or gives way to another (%s), and cut", line_phase_names[l->phase]);
    shutdown(l->fd, SHUT_RDWR);
}

/* Whoever takes nothing of an answer, or sends nothing of a body, would use up the time that all others have. */
static bool keeps_drain(const struct reaper *r, struct line *l, uint64_t now_ms)
{
    bool moves = l->phase == LINE_BODY || l->phase == LINE_ANSWER;
    uint64_t bytes = moves ? moved(l) : 0;

    if (!r->draining || !moves || bytes != l->seen || l->seen_ms == 0) {
        l->seen = bytes;
        l->seen_ms = now_ms;
    }
    return now_ms - l->seen_ms >= DRAIN_STILL_MS;
}

static void look_at(struct reaper *r, struct line *l, uint64_t now_ms)
{
    if (!l->cut && keeps_drain(r, l, now_ms)) cut(r, l);
    if (l->cut || now_ms - l->since_ms < allowed[l->phase].time_ms) return;
    if (allowed[l->phase].bytes < UINT64_MAX) {
        uint64_t bytes = moved(l), before = l->bytes;
        l->bytes = bytes;
        l->since_ms = now_ms;
        if (bytes - before >= allowed[l->phase].bytes) return;
    }
    cut(r, l);
}

/* ---- too many --------------------------------------------------------------------------------------------------- */

static bool same_origin(const struct line *a, const struct line *b)
{
    return a->origin_size == b->origin_size && memcmp(a->origin, b->origin, a->origin_size) == 0;
}

/* The line that is missed least: among those of `of`'s address, or, of NULL, among all. NULL: all are at work. */
static struct line *least_missed(struct reaper *r, const struct line *of, uint64_t now_ms)
{
    struct line *idle = NULL, *silent = NULL;

    LIST_EACH(struct line, l, node, &r->lines) {
        if (l->cut || (of != NULL && !same_origin(l, of))) continue;
        if (l->phase == LINE_IDLE && (idle == NULL || l->since_ms < idle->since_ms)) idle = l;
        if (l->phase == LINE_HEADERS && silent == NULL && now_ms - l->since_ms >= FRESH_MS) silent = l;
    }
    return idle != NULL ? idle : silent;
}

static void make_room(struct reaper *r, struct line *fresh, uint64_t now_ms)
{
    unsigned of_one = 0, of_all = 0;

    LIST_EACH(struct line, l, node, &r->lines) {
        of_all += !l->cut;
        of_one += !l->cut && same_origin(l, fresh);
    }
    if (of_one <= r->bounds.of_one && of_all <= r->bounds.of_all) return;
    struct line *goes = least_missed(r, of_one > r->bounds.of_one ? fresh : NULL, now_ms);
    cut(r, goes != NULL ? goes : fresh);
}

static void *run(void *ctx)
{
    struct reaper *r = ctx;

    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        uint64_t now = clock_ms(), then = now + LOOK_MS;
        LIST_EACH(struct line, l, node, &r->lines) look_at(r, l, now);
        struct timespec until = {.tv_sec = (time_t)(then / 1000), .tv_nsec = (long)(then % 1000) * 1000000};
        pthread_cond_timedwait(&r->changed, &r->lock, &until);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

enum status reaper_start(_Atomic uint64_t cuts[LINE_PHASES], struct reaper_bounds bounds, struct reaper **out,
                         struct error *e)
{
    struct reaper *r = mem_zero(sizeof *r);
    pthread_condattr_t monotonic;

    if (r == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the HTTP server");
    r->cuts = cuts;
    r->bounds = bounds;
    list_init(&r->lines);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int why = pthread_create(&r->thread, NULL, run, r);
    if (why == 0) {
        *out = r;
        return STATUS_OK;
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    mem_free(r);
    return error_set(e, REASON_SYSTEM, "no thread for the HTTP server: %s", strerror(why));
}

void reaper_drain(struct reaper *r)
{
    pthread_mutex_lock(&r->lock);
    r->draining = true;
    pthread_mutex_unlock(&r->lock);
}

void reaper_stop(struct reaper *r)
{
    if (r == NULL) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    mem_free(r);
}

struct line *line_open(struct reaper *r, int fd, const struct sockaddr_storage *from)
{
    struct line *l = mem_zero(sizeof *l);

    if (l == NULL) return NULL;
    *l = (struct line){.reaper = r, .fd = fd, .phase = LINE_HEADERS, .since_ms = clock_ms()};
    if (from != NULL) l->origin_size = origin_name(fd, from, l->origin);
    pthread_mutex_lock(&r->lock);
    list_append(&r->lines, &l->node);
    make_room(r, l, l->since_ms);
    pthread_mutex_unlock(&r->lock);
    return l;
}

void line_phase(struct line *l, enum line_phase p)
{
    if (l == NULL) return;
    pthread_mutex_lock(&l->reaper->lock);
    l->phase = p;
    l->since_ms = clock_ms();
    if (p == LINE_BODY || p == LINE_ANSWER) l->bytes = moved(l);
    pthread_mutex_unlock(&l->reaper->lock);
}

unsigned line_wrong_token(struct line *l)
{
    if (l == NULL) return 1;
    pthread_mutex_lock(&l->reaper->lock);
    unsigned count = ++l->wrong_tokens;
    pthread_mutex_unlock(&l->reaper->lock);
    return count;
}

void line_close(struct line *l)
{
    if (l == NULL) return;
    struct reaper *r = l->reaper;

    pthread_mutex_lock(&r->lock);
    list_remove(&l->node);
    pthread_mutex_unlock(&r->lock);
    mem_free(l);
}
