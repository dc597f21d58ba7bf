#include "service/transport_accept.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

int accept_cap_open(const struct address *a, unsigned max)
{
    (void)a;
    (void)max;
    return -1;
}
void accept_cap_close(int cap) { (void)cap; }
unsigned accept_cap_connections(int cap) { return (void)cap, 0; }
uint64_t accept_cap_refused(int cap) { return (void)cap, 0; }

#else

enum { CAPS = 4, DESCRIPTORS = 1 << 16, KEEPALIVE_S = 30 };

/* Accepting happens on libnanomsg's thread, closing on any; hence atomics. They are global because accept4 and close
 * are: there is no argument that could lead to an instance. */
struct cap {
    atomic_bool on;
    struct address at;
    int max;
    atomic_int open;
    atomic_ullong refused;
};

static struct cap caps[CAPS];
static _Atomic uint8_t cap_of[DESCRIPTORS];          /* by descriptor: index of its cap + 1 */

int accept_cap_open(const struct address *a, unsigned max)
{
    for (int i = 0; i < CAPS; i++) {
        struct cap *c = &caps[i];
        if (atomic_load(&c->on)) continue;
        c->at = *a;
        c->max = (int)max;
        atomic_store(&c->open, 0);
        atomic_store(&c->refused, 0);
        atomic_store(&c->on, true);
        return i;
    }
    return -1;
}

void accept_cap_close(int cap)
{
    if (cap >= 0) atomic_store(&caps[cap].on, false);
}

unsigned accept_cap_connections(int cap) { return cap >= 0 ? (unsigned)atomic_load(&caps[cap].open) : 0; }
uint64_t accept_cap_refused(int cap) { return cap >= 0 ? atomic_load(&caps[cap].refused) : 0; }

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
        {IPPROTO_TCP, TCP_USER_TIMEOUT, PROGRESS_MS},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

__attribute__((visibility("default"))) int close(int fd)
{
    uint8_t cap = fd >= 0 && fd < DESCRIPTORS ? atomic_exchange(&cap_of[fd], 0) : 0;

    if (cap > 0) atomic_fetch_sub(&caps[cap - 1].open, 1);
    return (int)syscall(SYS_close, fd);
}

/* Called with libnanomsg's locks held: no nn_ function may be called here. ECONNABORTED is what it takes for a peer
 * that left before it was accepted, and goes on. */
__attribute__((visibility("default"))) int accept4(int listener, struct sockaddr *from, socklen_t *size, int flags)
{
    int fd = (int)syscall(SYS_accept4, listener, from, size, flags);
    struct cap *c = fd >= 0 ? cap_of_listener(listener) : NULL;

    if (c == NULL) return fd;
    if (atomic_fetch_add(&c->open, 1) >= c->max || fd >= DESCRIPTORS) {
        atomic_fetch_sub(&c->open, 1);
        atomic_fetch_add(&c->refused, 1);
        syscall(SYS_close, fd);
        errno = ECONNABORTED;
        return -1;
    }
    if (!c->at.ipc) keep_alive(fd);
    atomic_store(&cap_of[fd], (uint8_t)(c - caps + 1));
    return fd;
}

#endif
