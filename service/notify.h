/* What a service manager is told (sd_notify(3)), by hand: a datagram to the socket that NOTIFY_SOCKET names. */
#ifndef SERVICE_NOTIFY_H
#define SERVICE_NOTIFY_H

#include <stdbool.h>

/* state: lines such as "READY=1" or "STOPPING=1". Without NOTIFY_SOCKET nothing happens; a manager that does not listen
 * is no reason to stop. Any thread; never waits. False: the manager's queue is full; say it again later. */
bool notify_manager(const char *state);

#endif
