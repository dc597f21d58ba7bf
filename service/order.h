/* The keys of a store in the order of their names, for lists in pages: a B-tree whose nodes know how many keys are below
 * them, so that a page and the count of a prefix cost a search, and a key that comes or goes as much. Nothing is ever
 * sorted as a whole. A key takes about 12 bytes of it.
 *
 * Core thread only. */
#ifndef SERVICE_ORDER_H
#define SERVICE_ORDER_H

#include "service/key.h"

struct order_node;

struct order {                       /* zeroed: empty */
    struct order_node *root;         /* NULL: no keys */
    unsigned depth;                  /* levels above the leaves */
};

void order_fini(struct order *o);
size_t order_count(const struct order *o);
/* The key's name is not there yet. NO_MEMORY leaves all as it was. */
enum status order_add(struct order *o, struct key *k, struct error *e) MUST_CHECK;
/* It is there. Needs no memory. */
void order_remove(struct order *o, const struct key *k);

struct order_page {
    size_t first;                    /* the place of the first key behind `after`; see order_at */
    size_t count;                    /* keys from there on that begin with the prefix */
    size_t total;                    /* all that begin with it */
};
/* prefix: empty takes all, and a number has none. after: NULL, or a name that need not be there. */
struct order_page order_find(const struct order *o, struct bytes prefix, const struct key_name *after);
/* The key at a place, from 0; places change when keys come or go. */
struct key *order_at(const struct order *o, size_t place);

#endif
