/* What libnanomsg lacks at its TCP sockets: a cap on the connections that it takes, in all and from one address, a bound
 * on the memory that they make it hold, and deadlines. Without them its only thread spins when descriptors run out, and
 * a host that is dead, silent or slow costs a connection and up to two frames for ever.
 *
 * It calls accept4, recvmsg, sendmsg and close through the dynamic linker, so this file's definitions of them are used
 * instead of libc's, in the whole program; for all sockets but those of an open cap they do what libc's do. Of those it
 * follows the lengths of messages: who is in the middle of one, and how much of it lies in libnanomsg.
 *
 * Off under address and thread sanitizers, which bring definitions of their own. Never part of libparamd: it would
 * change what its host program calls. */
#ifndef SERVICE_TRANSPORT_ACCEPT_H
#define SERVICE_TRANSPORT_ACCEPT_H

#include "service/transport_common.h"

/* From now on at most max connections come out of listeners at this address, of one origin at most of_origin. *cap is its
 * number, for below; -1: off. One thread. */
enum status accept_cap_open(const struct address *a, unsigned max, unsigned of_origin, int *cap,
                            struct error *e) MUST_CHECK;
void accept_cap_close(int cap);                      /* when its connections are closed; -1 is nothing */
unsigned accept_cap_connections(int cap);            /* open now; 0 for -1 */
/* Ends connections that have said nothing since their greeting, and those on which a message stands half way, in either
 * direction (motion_stands). Called every second or so. */
void accept_cap_sweep(int cap, uint64_t now_ms);
struct accept_refusals { uint64_t limit, deadline; };
struct accept_refusals accept_cap_refusals(int cap);

#endif
