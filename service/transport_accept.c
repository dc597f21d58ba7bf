#include "service/transport_accept.h"

#include "service/transport_origin.h"

#include <errno.h>
#include <linux/tcp.h>               /* the C library's tcp_info ends before the counts of bytes */
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define ACCEPT_CAP_OFF
#endif
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define ACCEPT_CAP_OFF
#endif

#ifdef ACCEPT_CAP_OFF

enum status accept_cap_open(const struct address *a, unsigned max, unsigned of_origin, int *cap, struct error *e)
{
    (void)a, (void)max, (void)of_origin, (void)e;
    *cap = -1;
    return STATUS_OK;
}
void accept_cap_close(int cap) { (void)cap; }
unsigned accept_cap_connections(int cap) { return (void)cap, 0; }
void accept_cap_sweep(int cap, uint64_t now_ms) { (void)cap, (void)now_ms; }
struct accept_refusals accept_cap_refusals(int cap) { return (void)cap, (struct accept_refusals){0, 0}; }

#else

enum {
    CAPS = 8,
    DESCRIPTORS = 1 << 16,
    KEEPALIVE_S = 30,
    GREETING_SIZE = 8,
    LENGTH_SIZE = 8,
    BLOCK = 64 << 10                 /* what is held is counted in such: small messages need no lock */
};

/* They are global because accept4 and the others are: there is no argument that could lead to an instance. */
struct cap {
    atomic_bool on;
    struct address at;
    int max;
    struct origins origins;          /* under the lock */
    atomic_int open;
    atomic_ullong limit, deadline;
};

/* A connection that came through a cap; by its descriptor. */
struct taken {
    _Atomic uint8_t cap;             /* index + 1; 0: none */
    /* under the lock: */
    struct origin *origin;
    size_t counted;                  /* of what follows, in its account */
    bool ended;
    bool seen;                       /* by a sweep; then the rest holds */
    uint64_t began_ms;
    struct motion in, out;
    /* of libnanomsg's thread, but that others look at the atomic ones: */
    bool greeted;
    uint8_t head[LENGTH_SIZE];       /* greeting or length, as far as it is there */
    uint8_t head_size;
    uint64_t left, have;             /* of the message that is arriving; left 0: none */
    uint64_t unsent;                 /* of the one that is leaving */
    atomic_bool arriving, leaving;
};

static struct cap caps[CAPS];
static struct taken taken[DESCRIPTORS];
static int highest;                  /* no descriptor above it was ever taken; under the lock */
/* From finding a descriptor in `taken` to what is done with it: else its number might be another's by then. Innermost;
 * nothing that waits is called under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock. */
static void release(struct taken *t)
{
    uint8_t cap = atomic_exchange(&t->cap, 0);

    if (cap == 0) return;
    sp_account_give(origin_account(t->origin), t->counted);
    origin_leave(&caps[cap - 1].origins, t->origin);
    t->origin = NULL;
    atomic_fetch_sub(&caps[cap - 1].open, 1);
}

enum status accept_cap_open(const struct address *a, unsigned max, unsigned of_origin, int *cap, struct error *e)
{
    for (int i = 0; i < CAPS; i++) {
        struct cap *c = &caps[i];
        if (atomic_load(&c->on)) continue;
        enum status s = origins_init(&c->origins, of_origin, e);
        if (s != STATUS_OK) return s;
        c->at = *a;
        c->max = (int)max;
        atomic_store(&c->open, 0);
        atomic_store(&c->limit, 0);
        atomic_store(&c->deadline, 0);
        atomic_store(&c->on, true);
        *cap = i;
        return STATUS_OK;
    }
    return error_set(e, REASON_LIMIT, "%d doors of libnanomsg are open; no more can be guarded", CAPS);
}

void accept_cap_close(int cap)
{
    if (cap < 0) return;
    pthread_mutex_lock(&lock);
    atomic_store(&caps[cap].on, false);
    for (int fd = 0; fd <= highest; fd++) /* there should be none */
        if (atomic_load(&taken[fd].cap) == cap + 1) release(&taken[fd]);
    origins_fini(&caps[cap].origins);
    pthread_mutex_unlock(&lock);
}

unsigned accept_cap_connections(int cap) { return cap >= 0 ? (unsigned)atomic_load(&caps[cap].open) : 0; }

struct accept_refusals accept_cap_refusals(int cap)
{
    if (cap < 0) return (struct accept_refusals){0, 0};
    return (struct accept_refusals){atomic_load(&caps[cap].limit), atomic_load(&caps[cap].deadline)};
}

/* Under the lock. Shutting down and not closing: the descriptor is libnanomsg's, which sees the end of the stream and
 * closes it. The close is to reset: a peer that found the window shut when all it had sent was read would otherwise go on
 * asking whether it is open, which the kernel answers with no for a minute (FIN-WAIT-2). */
static void end(int fd, struct taken *t, atomic_ullong *count)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    if (t->ended) return;
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    t->ended = true;
    atomic_fetch_add(count, 1);
    (void)shutdown(fd, SHUT_RDWR);
}

/* ---- deadlines ------------------------------------------------------------------------------------------------ */

static bool is_late(struct taken *t, const struct tcp_info *i, uint64_t now_ms)
{
    if (!t->seen) {
        t->seen = true;
        t->began_ms = now_ms;
        t->in = t->out = (struct motion){.busy = false};
    }
    bool silent = i->tcpi_bytes_received <= GREETING_SIZE && now_ms - t->began_ms >= PROGRESS_MS;
    bool stops = motion_stands(&t->in, atomic_load(&t->arriving), i->tcpi_bytes_received, now_ms);
    bool waits = atomic_load(&t->leaving) || i->tcpi_notsent_bytes > 0 || i->tcpi_unacked > 0;
    return motion_stands(&t->out, waits, i->tcpi_bytes_acked, now_ms) || silent || stops;
}

void accept_cap_sweep(int cap, uint64_t now_ms)
{
    if (cap < 0 || caps[cap].at.ipc) return;
    pthread_mutex_lock(&lock);
    for (int fd = 0; fd <= highest; fd++) {
        struct tcp_info info = {0};
        socklen_t size = sizeof info;
        if (atomic_load(&taken[fd].cap) != cap + 1) continue;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && is_late(&taken[fd], &info, now_ms))
            end(fd, &taken[fd], &caps[cap].deadline);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- what libnanomsg calls ------------------------------------------------------------------------------------ */

static bool bound_to(const struct sockaddr_storage *at, const struct address *a)
{
    switch (at->ss_family) {
    case AF_INET: return !a->ipc && ntohs(((const struct sockaddr_in *)(const void *)at)->sin_port) == a->port;
    case AF_INET6: return !a->ipc && ntohs(((const struct sockaddr_in6 *)(const void *)at)->sin6_port) == a->port;
    case AF_UNIX: return a->ipc && strcmp(((const struct sockaddr_un *)(const void *)at)->sun_path, a->path) == 0;
    default: return false;
    }
}

static struct cap *cap_of_listener(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at - 1;                  /* a path that fills its field stays ended */
    int known = -1;

    for (int i = 0; i < CAPS; i++) {
        if (!atomic_load(&caps[i].on)) continue;
        if (known != 0) known = getsockname(fd, (struct sockaddr *)&at, &size);
        if (known == 0 && bound_to(&at, &caps[i].at)) return &caps[i];
    }
    return NULL;
}

static void keep_alive(int fd)
{
    const struct { int level, name, value; } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_S / 3},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, HOST_GONE_MS},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

/* Writes fd down unless there are enough. */
static bool take(int cap, int fd, const struct sockaddr_storage *from)
{
    struct taken *t = &taken[fd];
    struct origin *origin = NULL;

    pthread_mutex_lock(&lock);
    bool fits = atomic_load(&caps[cap].open) < caps[cap].max &&
                origin_enter(&caps[cap].origins, fd, from, &origin, NULL) == STATUS_OK;
    if (fits) {
        atomic_fetch_add(&caps[cap].open, 1);
        t->origin = origin;
        t->counted = 0;
        t->seen = t->ended = t->greeted = false;
        t->head_size = 0;
        t->left = t->have = t->unsent = 0;
        atomic_store(&t->arriving, false);
        atomic_store(&t->leaving, false);
        if (fd > highest) highest = fd;
        atomic_store(&t->cap, (uint8_t)(cap + 1));
    } else {
        atomic_fetch_add(&caps[cap].limit, 1);
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

static struct taken *taken_at(int fd)
{
    return fd >= 0 && fd < DESCRIPTORS && atomic_load(&taken[fd].cap) != 0 ? &taken[fd] : NULL;
}

/* Counts what is held; a connection for which there is no room ends. */
static void count(int fd, struct taken *t)
{
    size_t held = (size_t)(t->have + t->unsent) / BLOCK * BLOCK;

    if (held == t->counted) return;
    pthread_mutex_lock(&lock);
    bool fits = held < t->counted || sp_account_take(origin_account(t->origin), held - t->counted);
    if (held < t->counted) sp_account_give(origin_account(t->origin), t->counted - held);
    if (fits) t->counted = held;
    else end(fd, t, &caps[t->cap - 1].limit);
    pthread_mutex_unlock(&lock);
}

/* The stream is a greeting, then messages with their length before them. */
static void follow(struct taken *t, const uint8_t *at, size_t size)
{
    while (size > 0) {
        if (t->left > 0) {
            size_t n = size < t->left ? size : (size_t)t->left;
            t->left -= n;
            t->have = t->left > 0 ? t->have + n : 0;
            at += n;
            size -= n;
            continue;
        }
        t->head[t->head_size++] = *at++;
        size--;
        if (t->head_size < LENGTH_SIZE) continue;
        t->head_size = 0;
        for (int i = 0; t->greeted && i < LENGTH_SIZE; i++) t->left = t->left << 8 | t->head[i];
        t->greeted = true;
    }
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    ssize_t got = syscall(SYS_recvmsg, fd, m, flags);
    struct taken *t = got > 0 ? taken_at(fd) : NULL;

    if (t == NULL || caps[t->cap - 1].at.ipc) return got;
    size_t left = (size_t)got;
    for (size_t i = 0; i < m->msg_iovlen && left > 0; i++) {
        size_t n = m->msg_iov[i].iov_len < left ? m->msg_iov[i].iov_len : left;
        follow(t, m->msg_iov[i].iov_base, n);
        left -= n;
    }
    atomic_store(&t->arriving, t->left > 0 || t->head_size > 0);
    count(fd, t);
    return got;
}

/* What one call does not take, libnanomsg keeps and gives again when there is room. */
__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    ssize_t sent = syscall(SYS_sendmsg, fd, m, flags);
    int why = errno;
    struct taken *t = sent >= 0 || why == EAGAIN ? taken_at(fd) : NULL;
    size_t size = 0;

    if (t == NULL) return sent;
    for (size_t i = 0; i < m->msg_iovlen; i++) size += m->msg_iov[i].iov_len;
    t->unsent = size - (sent > 0 ? (size_t)sent : 0);
    atomic_store(&t->leaving, t->unsent > 0);
    count(fd, t);
    errno = why;
    return sent;
}

__attribute__((visibility("default"))) int close(int fd)
{
    if (taken_at(fd) == NULL) return (int)syscall(SYS_close, fd);
    pthread_mutex_lock(&lock);
    release(&taken[fd]);
    int done = (int)syscall(SYS_close, fd);
    pthread_mutex_unlock(&lock);
    return done;
}

/* Called with libnanomsg's locks held: no nn_ function may be called here. ECONNABORTED is what it takes for a peer
 * that left before it was accepted, and goes on. */
__attribute__((visibility("default"))) int accept4(int listener, struct sockaddr *from, socklen_t *size, int flags)
{
    struct cap *c = cap_of_listener(listener);

    if (c == NULL) return (int)syscall(SYS_accept4, listener, from, size, flags);
    struct sockaddr_storage peer = {0};
    socklen_t peer_size = sizeof peer;
    int fd = (int)syscall(SYS_accept4, listener, &peer, &peer_size, flags);
    if (fd < 0) return fd;
    if (fd >= DESCRIPTORS || !take((int)(c - caps), fd, &peer)) {
        syscall(SYS_close, fd);
        errno = ECONNABORTED;
        return -1;
    }
    if (!c->at.ipc) keep_alive(fd);
    if (from != NULL && size != NULL) {
        memcpy(from, &peer, *size < peer_size ? *size : peer_size);
        *size = peer_size;
    }
    return fd;
}

#endif
