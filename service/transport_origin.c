#include "service/transport_origin.h"

#include "service/base/map.h"
#include "service/base/mem.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>

struct origin {
    unsigned connections;
    struct sp_account held;
    size_t name_size;
    uint8_t name[ORIGIN_SIZE_MAX];
};

enum status origins_init(struct origins *o, unsigned connections_max, struct error *e)
{
    uint8_t seed[16];

    if (getrandom(seed, sizeof seed, 0) != sizeof seed) return error_set(e, REASON_SYSTEM, "no random bytes");
    o->held = (struct sp_account){.max = HELD_MAX};
    o->connections_max = connections_max;
    o->by_address = map_new(seed);
    return o->by_address != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory for a door");
}

void origins_fini(struct origins *o) { map_free(o->by_address); }

struct sp_account *origin_account(struct origin *at) { return &at->held; }

static size_t name_of_v6(const struct in6_addr *a, uint8_t out[ORIGIN_SIZE_MAX])
{
    /* ::ffff:192.0.2.1 is what an IPv4 peer is called at a listener for both. */
    size_t skip = IN6_IS_ADDR_V4MAPPED(a) ? 12 : 0, size = skip > 0 ? 4 : 8;

    out[0] = skip > 0 ? 4 : 6;
    memcpy(out + 1, a->s6_addr + skip, size);
    return 1 + size;
}

size_t origin_name(int fd, const struct sockaddr_storage *from, uint8_t out[ORIGIN_SIZE_MAX])
{
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t size = sizeof who;

    switch (from->ss_family) {
    case AF_INET:
        out[0] = 4;
        memcpy(out + 1, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
        return 5;
    case AF_INET6: return name_of_v6(&((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, out);
    default:
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
        out[0] = 1;
        memcpy(out + 1, &who.uid, sizeof who.uid);
        return 1 + sizeof who.uid;
    }
}

enum status origin_enter(struct origins *o, int fd, const struct sockaddr_storage *from, struct origin **out,
                         struct error *e)
{
    uint8_t name[ORIGIN_SIZE_MAX];
    size_t size = origin_name(fd, from, name);
    struct origin *at = map_find(o->by_address, bytes_of(name, size));

    if (at != NULL && at->connections >= o->connections_max)
        return error_set(e, REASON_LIMIT, "it has %u connections, the most for one address; start the daemon with a larger "
                         "--address-connections than %u", at->connections, o->connections_max);
    if (at == NULL) {
        at = mem_zero(sizeof *at);
        if (at == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a connection");
        at->held = (struct sp_account){.in = &o->held, .max = HELD_OF_ADDRESS_MAX};
        at->name_size = size;
        memcpy(at->name, name, size);
        enum status s = map_put(o->by_address, bytes_of(name, size), at, e);
        if (s != STATUS_OK) {
            mem_free(at);
            return s;
        }
    }
    at->connections++;
    *out = at;
    return STATUS_OK;
}

void origin_leave(struct origins *o, struct origin *at)
{
    if (at == NULL || --at->connections > 0) return;
    (void)map_remove(o->by_address, bytes_of(at->name, at->name_size));
    mem_free(at);
}
