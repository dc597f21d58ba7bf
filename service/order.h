/* The keys of a store in the order of their names, for lists in pages. Sorted when first asked for and again after keys
 * have come or gone, so that a page costs a search, and a trainer who creates keys pays nothing.
 *
 * Core thread only. */
#ifndef SERVICE_ORDER_H
#define SERVICE_ORDER_H

#include "service/key.h"

struct store;

struct order {
    struct key **keys;
    size_t count;
    bool sorted;                     /* false: keys have come or gone, and those in the list may be no more */
};

struct order_page {
    struct key *const *keys;         /* those after `after`; lent until keys come or go */
    size_t count;
    size_t total;                    /* all that begin with the prefix */
};

void order_fini(struct order *o);
static inline void order_spoil(struct order *o) { o->sorted = false; }
/* prefix: empty takes all, and a number has none. after: NULL, or a name that need not be there. */
enum status order_find(struct store *s, struct bytes prefix, const struct key_name *after, struct order_page *out,
                       struct error *e) MUST_CHECK;

#endif
