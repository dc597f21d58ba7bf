/* A list whose links lie in the elements: insertion and removal cannot fail and cost nothing to allocate.
 *
 *     struct list_node in the element, struct list for the head;
 *     LIST_EACH(struct key, k, node, &store->dirty) { ... may remove k ... }
 *
 * A node is zeroed before its first use and after list_remove, so that list_linked tells the truth. */
#ifndef SERVICE_BASE_LIST_H
#define SERVICE_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct list_node {
    struct list_node *next;
    struct list_node *prev;
};

struct list {
    struct list_node head;
};

static inline void list_init(struct list *l) { l->head.next = l->head.prev = &l->head; }
static inline bool list_empty(const struct list *l) { return l->head.next == &l->head; }
static inline bool list_linked(const struct list_node *n) { return n->next != NULL; }

static inline void list_insert_before(struct list_node *at, struct list_node *n)
{
    n->prev = at->prev;
    n->next = at;
    at->prev->next = n;
    at->prev = n;
}

static inline void list_append(struct list *l, struct list_node *n) { list_insert_before(&l->head, n); }
static inline void list_prepend(struct list *l, struct list_node *n) { list_insert_before(l->head.next, n); }

/* Does nothing to a node that is in no list. */
static inline void list_remove(struct list_node *n)
{
    if (n->next == NULL) return;
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->next = n->prev = NULL;
}

#define CONTAINER_OF(node_pointer, type, member) ((type *)(void *)((char *)(node_pointer) - offsetof(type, member)))

/* The first element, or NULL. */
#define LIST_FIRST(type, member, l) \
    (list_empty(l) ? NULL : CONTAINER_OF((l)->head.next, type, member))

/* The element in hand may be removed or freed; its neighbours may not. The loop is two: the inner one names the
 * element, and has the outer one end at the head unless it ran to its own end, so that break leaves both. */
#define LIST_EACH(type, var, member, l)                                                                  \
    for (struct list_node *var##_at = (l)->head.next, *var##_next = NULL, *var##_step = NULL;            \
         var##_at != &(l)->head; var##_at = var##_step)                                                  \
        for (type *var = (var##_next = var##_at->next, var##_step = (struct list_node *)(uintptr_t)&(l)->head, \
                          CONTAINER_OF(var##_at, type, member));                                         \
             var != NULL; var = NULL, var##_step = var##_next)

#endif
