/* A cap on the connections that libnanomsg takes, and keepalive on them. The library offers neither: without a free
 * descriptor its only thread spins, and a dead host's connection stays for ever. It calls accept4 and close through
 * the dynamic linker, so this file's definitions of them are used instead of libc's, in the whole program; for all
 * sockets but those of an open cap they do what libc's do.
 *
 * Off under address and thread sanitizers, which bring definitions of their own. Never part of libparamd: it would
 * change what its host program calls. */
#ifndef SERVICE_TRANSPORT_ACCEPT_H
#define SERVICE_TRANSPORT_ACCEPT_H

#include "service/transport_common.h"

/* From now on at most max connections come out of listeners at this address. The cap's number, for below; -1: off, or
 * too many are open. One thread. */
int accept_cap_open(const struct address *a, unsigned max);
void accept_cap_close(int cap);                      /* when its connections are closed; -1 is nothing */
unsigned accept_cap_connections(int cap);            /* open now; 0 for -1 */
uint64_t accept_cap_refused(int cap);

#endif
