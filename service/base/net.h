/* Host names and the sockets that listen at them. A name stands for all of its addresses: Debian's /etc/hosts gives
 * localhost two, 127.0.0.1 and ::1, and a client may come by either. Any thread; looking a name up may wait. */
#ifndef SERVICE_BASE_NET_H
#define SERVICE_BASE_NET_H

#include "service/base/status.h"

struct addrinfo;

enum { NET_SOCKETS_MAX = 8 };        /* addresses of one name; further ones are left out */

struct net_sockets {
    int fd[NET_SOCKETS_MAX];
    unsigned count, port;            /* the port is the same at all of them */
};

/* getaddrinfo for stream sockets, with its flags and its result; out is for freeaddrinfo. "*" is every IPv4 interface.
 * localhost is the loopback also where no hosts file says so (RFC 6761, 6.3). */
int net_resolve(const char *host, unsigned port, int flags, struct addrinfo **out) MUST_CHECK;
/* Non-blocking stream sockets bound to every address of the host, not yet listening; port 0 takes one that is free at all
 * of them. An address that this machine does not have, such as ::1 where IPv6 is off, is left out as long as another one
 * is there; one that is in use fails the whole. The sockets are for net_close. */
enum status net_bind(const char *host, unsigned port, struct net_sockets *out, struct error *e) MUST_CHECK;
void net_close(struct net_sockets *s);

#endif
