/* Whom a door has to do with: the peers at one address, and what they take of it together, so that one machine cannot
 * take all. An IPv6 machine has a whole /64 to choose addresses from, and counts as one; at a Unix socket the user is
 * the address. Core thread. */
#ifndef SERVICE_TRANSPORT_ORIGIN_H
#define SERVICE_TRANSPORT_ORIGIN_H

#include "service/transport_common.h"

struct origin;

struct origins {
    struct map *by_address;
    struct sp_account held;          /* of all */
    unsigned connections_max;        /* of one */
};

enum status origins_init(struct origins *o, unsigned connections_max, struct error *e) MUST_CHECK;
void origins_fini(struct origins *o);            /* all must have left */

/* One more connection from there. LIMIT when it has as many as one address may have. */
enum status origin_enter(struct origins *o, int fd, const struct sockaddr_storage *from, struct origin **out,
                         struct error *e) MUST_CHECK;
void origin_leave(struct origins *o, struct origin *at);         /* NULL is nothing */
struct sp_account *origin_account(struct origin *at);

/* What makes an address one: its bytes, of which the first tells the kind. Answers how many. */
enum { ORIGIN_SIZE_MAX = 17 };
size_t origin_name(int fd, const struct sockaddr_storage *from, uint8_t out[ORIGIN_SIZE_MAX]);

#endif
