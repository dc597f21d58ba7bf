#include "service/base/net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT_TRIES = 16 };

int net_resolve(const char *host, unsigned port, int flags, struct addrinfo **out)
{
    bool every = strcmp(host, "*") == 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV,
                                   .ai_family = every ? AF_INET : AF_UNSPEC};
    char text[16];

    snprintf(text, sizeof text, "%u", port);
    int failed = getaddrinfo(every ? NULL : host, text, &hints, out);
    if (failed != 0 && strcmp(host, "localhost") == 0) failed = getaddrinfo("127.0.0.1", text, &hints, out);
    return failed;
}

static unsigned port_of(const struct sockaddr_storage *at)
{
    if (at->ss_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)(const void *)at)->sin6_port);
    return ntohs(((const struct sockaddr_in *)(const void *)at)->sin_port);
}

static unsigned bound_port(int fd)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;

    return getsockname(fd, (struct sockaddr *)&at, &size) == 0 ? port_of(&at) : 0;
}

/* The address with another port. */
static void with_port(const struct addrinfo *from, unsigned port, struct sockaddr_storage *out)
{
    memcpy(out, from->ai_addr, from->ai_addrlen);
    if (out->ss_family == AF_INET6) ((struct sockaddr_in6 *)(void *)out)->sin6_port = htons((uint16_t)port);
    else ((struct sockaddr_in *)(void *)out)->sin_port = htons((uint16_t)port);
}

static int bind_one(const struct addrinfo *to, unsigned port)
{
    struct sockaddr_storage at;
    int on = 1, fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) return -1;
    with_port(to, port, &at);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)&at, to->ai_addrlen) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* The C library lists an address twice when two lines of the hosts file give it. */
static bool is_repeated(const struct addrinfo *list, const struct addrinfo *at)
{
    for (; list != at; list = list->ai_next)
        if (list->ai_addrlen == at->ai_addrlen && memcmp(list->ai_addr, at->ai_addr, at->ai_addrlen) == 0) return true;
    return false;
}

static bool is_absent(int why) { return why == EADDRNOTAVAIL || why == EAFNOSUPPORT || why == EPROTONOSUPPORT; }

/* 0, or an errno; what is bound then is closed. */
static int bind_all(const struct addrinfo *list, unsigned port, struct net_sockets *out)
{
    int absent = EADDRNOTAVAIL;

    *out = (struct net_sockets){.port = port};
    for (const struct addrinfo *to = list; to != NULL && out->count < NET_SOCKETS_MAX; to = to->ai_next) {
        if ((to->ai_family != AF_INET && to->ai_family != AF_INET6) || is_repeated(list, to)) continue;
        int fd = bind_one(to, out->port), why = errno;
        if (fd >= 0) {
            out->fd[out->count++] = fd;
            if (out->port == 0) out->port = bound_port(fd);
        } else if (is_absent(why)) {
            absent = why;
        } else {
            net_close(out);
            return why;
        }
    }
    return out->count > 0 ? 0 : absent;
}

enum status net_bind(const char *host, unsigned port, struct net_sockets *out, struct error *e)
{
    struct addrinfo *found = NULL;
    int failed = net_resolve(host, port, AI_PASSIVE, &found), why = EADDRINUSE;

    *out = (struct net_sockets){.count = 0};
    if (failed != 0) return error_set(e, REASON_BAD_ARGUMENT, "%s has no address: %s", host, gai_strerror(failed));
    /* A port that is free at one address may be taken at the next. */
    for (int i = 0; i < (port == 0 ? PORT_TRIES : 1) && why == EADDRINUSE; i++) why = bind_all(found, port, out);
    freeaddrinfo(found);
    if (why == 0) return STATUS_OK;
    return error_set(e, REASON_SYSTEM, "cannot listen on %s port %u: %s%s", host, port, strerror(why),
                     why == EADDRINUSE ? "; is a daemon running already? Port 0 takes any free one" : "");
}

void net_close(struct net_sockets *s)
{
    for (unsigned i = 0; i < s->count; i++) close(s->fd[i]);
    s->count = 0;
}
