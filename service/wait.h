/* Waits: lists of conditions that somebody wants to hear of. A condition hangs in the list of what decides it; a wait
 * whose conditions are decided (or one of which has failed, or whose time is up) goes to core->decided. */
#ifndef SERVICE_WAIT_H
#define SERVICE_WAIT_H

#include "api/wire.h"
#include "service/store.h"

struct wait;

struct condition {
    struct list_node node;           /* of what decides it, a key, store, barrier or plane, while undecided */
    struct wait *wait;
    enum wait_kind kind;
    struct store *store;
    struct worker *worker;           /* held: whose ticket it is; NULL: nobody's */
    struct key *key;                 /* not held: a key that goes decides its conditions */
    struct key_name name;            /* init: text lies in the wait's block */
    uint64_t epoch;                  /* plane */
    uint64_t number;                 /* step, version, ticket or call */
    enum wait_state state;
    uint64_t version;
    enum reason reason;              /* failed */
    char *text;                      /* owned; the sentence */
};

struct wait {
    struct list_node node;           /* core->waits or core->decided */
    struct core *core;
    uint64_t deadline_ms;
    uint32_t count, want, decided, failed;
    bool begun;                      /* all of its conditions have been looked at */
    void (*answer)(struct wait *w);  /* the edge's; called once it lies in core->decided */
    void *owner;                     /* the edge's */
    struct condition conditions[];
};

/* A wait with `count` empty conditions. */
struct wait *wait_new(struct core *c, uint32_t count);
void wait_free(struct wait *w);
/* Looks at one of its conditions, each once and in any order; from then on what decides it tells. */
void wait_look(struct wait *w, struct condition *c);
/* All have been looked at: decided or not, the wait is the core's until `answer`. */
void wait_begin(struct wait *w);

/* Something has changed: look at the conditions that hang there. */
void waits_check(struct list *conditions);
/* A key has come to be: look at those of a store's init conditions that name it. */
void waits_check_init(struct list *conditions, const struct key *k);
/* The key goes: its conditions fail. */
void waits_fail(struct list *conditions, const struct error *why);
/* Decides those whose time is up, with sentences of what they wait for; answers the next deadline. */
uint64_t waits_tick(struct core *c, uint64_t now_ms);

#endif
