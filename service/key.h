/* A key: its description, its values, its optimizer state, and the line of updates that waits to run.
 * At most one update of a key is in flight; slots change in place in the key's queue order. */
#ifndef SERVICE_KEY_H
#define SERVICE_KEY_H

#include "api/limits.h"
#include "service/core.h"
#include "service/staging.h"
#include "service/state.h"
#include "service/version.h"

struct store;
struct round;
struct updater;
struct watch;

/* A key's name as a store has it. */
struct key_name {
    bool is_text;
    int64_t number;
    struct bytes text;                       /* borrowed */
};

bool key_name_equal(const struct key_name *a, const struct key_name *b);
/* For sentences: "key 3" or "key 'conv1_weight'". */
enum { KEY_PRINT_SIZE = 600 };
const char *key_name_print(const struct key_name *n, char out[KEY_PRINT_SIZE]);
/* As patterns and rules see it: an integer in decimal, in `room`, which the result may lie in. */
enum { KEY_NUMBER_SIZE = 24 };
struct bytes key_name_bytes(const struct key_name *n, char room[KEY_NUMBER_SIZE]);

struct key_shape {
    enum dtype dtype;
    unsigned ndim;
    uint64_t count;                          /* elements */
    uint64_t size;                           /* bytes */
    int64_t dims[DIMS_MAX];
};
/* "float32 (4, 4)" */
enum { SHAPE_PRINT_SIZE = 256 };
const char *shape_print(const struct key_shape *s, char out[SHAPE_PRINT_SIZE]);
bool shape_equal(const struct key_shape *a, const struct key_shape *b);

/* What an init wants to create; the name's bytes follow in the same block. */
struct init_wanted {
    struct key_name name;
    struct key_shape shape;
    enum { WANT_NEW, WANT_REPLACE } how;
};

enum { KEY_VERSIONS = 2 };

struct key {
    /* What every push and pull looks at comes first, together: with many keys the time goes into fetching it. */
    uint64_t id;                             /* of this creation; never used again in the daemon's life. Its low bits
                                              * are the slot: a frame of many keys finds each without a search */
    struct store *store;
    struct core *core;
    uint32_t slot;                           /* dense number in the store; used again after a delete */
    unsigned holds;
    struct version *current;
    struct queue *queue;
    uint32_t home;                           /* where all its memory lies, see gpu/device.h */
    uint8_t buffers;                         /* versions and spares, and one being written */
    uint8_t own_taken;                       /* bit i: own[i] is in use */
    uint8_t queue_index;
    bool busy : 1;                           /* one is in flight */
    bool turning : 1;                        /* and it is a turn: it writes no buffer */
    bool starting : 1;                       /* update_next is at work */
    bool deleted : 1;
    bool on_plane : 1;                       /* in a call that is not counted (plane.h) */
    bool room_lent : 1;                      /* a contribution to rounds[0] arrives in the room kept for it */
    uint64_t kept;                           /* bytes that its home keeps for it */
    uint64_t counted;                        /* of these against memory_max (account.h) */
    struct list versions;
    struct list spares;
    struct list updates;                     /* waiting */
    struct list waiters;                     /* conditions */
    struct watch *watch;                     /* owned; NULL: nobody looks at its statistics */
    uint64_t pushes;
    struct state state;                      /* what the updater keeps for it */
    struct key_shape shape;
    struct version own[KEY_VERSIONS];        /* the versions that it mostly has; further ones are allocated */

    struct key_name name;                    /* text is owned */
    struct round *rounds[2];                 /* open: the older one first; NULL: none */
    union {
        struct {
            uint64_t job;                    /* that created it or took it over */
            uint64_t made_by;                /* the call of the operator who initialised it; 0: a worker did */
            uint64_t opened_step;            /* highest step that ever had a round */
            uint64_t closed_step;            /* highest step whose round has ended, one way or the other */
        };
        struct task task;                    /* its end, when nobody asks for these any more */
    };
};

enum update_kind { UPDATE_PUSH, UPDATE_ROUND, UPDATE_SET, UPDATE_TURN };

/* One change of a value. Lies in a round, or is made for a push or a set. Or, of kind TURN, a turn in the line for what
 * makes no version: while it has it no step is under way, and the state is of one moment. */
struct update {
    struct task task;
    struct list_node node;
    enum update_kind kind;
    struct key *key;                         /* held */
    struct updater *updater;                 /* held */
    struct dmem sum;                         /* owned; size 0: none */
    struct staging *last;                    /* owned; NULL: none */
    struct dmem lent;                        /* of the pusher, in place of `last` until the device is done */
    uint32_t contributors;
    uint64_t based_on;                       /* version that its gradient was computed from; 0: unknown, or several */
    struct version *to;
    uint32_t flags;                          /* WORK_ */
    double product;                          /* of the state, when it is done */
    enum status (*turn)(struct update *u, struct error *e);  /* TURN: gives the device its work */
    void (*done)(struct update *u, const struct error *e);   /* e NULL: published as key->current, or the work of the
                                              * turn is done; frees u */
};

/* A key with its first value out of a complete staging, which it takes (also when it fails). Allocates the spare and
 * the slots of the present updater, so that a later push does not fail for them. */
enum status key_new(struct store *store, const struct init_wanted *wanted, struct staging *value, struct key **out,
                    struct error *e) MUST_CHECK;
/* What such a key counts for against memory_max: value, spare and state under the present updater, and KEY_COST. */
uint64_t key_needs(const struct store *store, const struct key_name *name, const struct key_shape *shape);
/* The most that a push of such a key, or a copy of its state, takes at once. */
uint64_t key_needs_free(const struct store *store, const struct key_shape *shape, uint64_t state_size);
uint64_t key_floor(const struct key *k);
/* A home for such a key, which keeps room for value, spare and state and for one push: a sum and a contribution. All but
 * the push is counted. */
struct room key_room(const struct store *store, const struct key_name *name, const struct key_shape *shape);
/* Home and account keep as much as a key needs whose state has so many bytes. */
void key_keep(struct key *k, uint64_t state_size);
/* Bytes of state that are kept. */
uint64_t key_kept_state(const struct key *k);
struct key *key_hold(struct key *k);
void key_drop(struct key *k);                /* frees a deleted one after its last use */

/* Where memory of the key with elements of this type lies. */
struct mem_place key_place(const struct key *k, enum dtype t);

/* Lines the update up; it runs when those before it are done. */
void key_update(struct update *u);
uint64_t key_version(const struct key *k);
/* The first version that can be under an updater which the store gets now: those before it come from updates that are
 * lined up, and from open rounds, which took theirs when they opened. Lower, should one of these fail. */
uint64_t key_version_ahead(const struct key *k);

#endif
