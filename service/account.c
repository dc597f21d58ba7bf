#include "service/account.h"

#include "api/limits.h"
#include "service/store.h"

static uint64_t on_their_way(const struct core *c) { return c->staging_used + c->staging_reserved; }

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t account_used(const struct core *c) { return c->counted + on_their_way(c); }

void account_add(struct core *c, int64_t more) { c->counted += (uint64_t)more; }

/* ---- the floor
 * ---------------------------------------------------------------------------------------------------
 */

void account_floor_comes(struct core *c, uint64_t floor) { c->floor = larger(c->floor, floor); }

void account_floor_goes(struct core *c) { c->floor_is_old = true; }

/* Looks at all keys: once after keys have gone, and only where the floor that they left would
 * refuse. */
static void find_floor(struct core *c)
{
    size_t at = 0;

    c->floor = 0;
    c->floor_is_old = false;
    for (const struct store *s; (s = map_next(c->stores, &at)) != NULL;)
        for (size_t i = 0; i < s->slot_count; i++)
            if (store_slot(s, i) != NULL) account_floor_comes(c, key_floor(store_slot(s, i)));
}

/* ---- the sum
 * -----------------------------------------------------------------------------------------------------
 */

static bool fits(const struct core *c, uint64_t more, uint64_t free)
{
    uint64_t most = c->limits.memory_max;

    return c->counted <= most && more <= most - c->counted && free <= most - c->counted - more;
}

static bool fits_ever(struct core *c, uint64_t more, uint64_t floor)
{
    if (!fits(c, more, larger(c->floor, floor)) && c->floor_is_old) find_floor(c);
    return fits(c, more, larger(c->floor, floor));
}

bool account_has_room(struct core *c, uint64_t more)
{
    return c->limits.memory_max == 0 || (fits_ever(c, more, 0) && fits(c, more, on_their_way(c)));
}

enum status account_check(struct core *c, uint64_t more, uint64_t floor, const char *what,
                          struct error *e)
{
    if (c->limits.memory_max == 0) return STATUS_OK;
    if (!fits_ever(c, more, floor))
        return error_set(
            e, REASON_LIMIT,
            "%s needs %llu bytes more; of the %llu that --memory-max allows %llu are taken, and "
            "%llu are kept free for pushes: delete keys, or raise --memory-max",
            what, (unsigned long long)more, (unsigned long long)c->limits.memory_max,
            (unsigned long long)c->counted, (unsigned long long)larger(c->floor, floor));
    if (fits(c, more, on_their_way(c))) return STATUS_OK;
    return error_retry(e, REASON_STAGING_FULL, RETRY_MS,
                       "%s needs %llu bytes more; of the %llu that --memory-max allows %llu "
                       "are taken, and values on their way hold %llu until they are applied",
                       what, (unsigned long long)more, (unsigned long long)c->limits.memory_max,
                       (unsigned long long)c->counted, (unsigned long long)on_their_way(c));
}

uint64_t account_staging_most(const struct core *c)
{
    uint64_t most = c->limits.memory_max, left = most > c->counted ? most - c->counted : 0;

    return most == 0 ? c->staging_max : smaller(c->staging_max, larger(left, c->floor));
}
