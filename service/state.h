/* What an updater keeps for one key: its slots, the f32 master of an f16 or bf16 value, and counters. Part of the key;
 * changed only in the order of the key's queue. Slots follow the updater under which the key steps: state_fit makes them
 * fit it, keeps what stays, and converts or begins the rest. Core thread only; nothing here waits for the device. */
#ifndef SERVICE_STATE_H
#define SERVICE_STATE_H

#include "service/core.h"
#include "service/updater.h"

struct key;
struct key_name;
struct key_shape;
struct store;
struct update;

/* Places of its pieces: the slots by their number, then these. */
enum { STATE_MASTER = STEP_SLOTS_MAX, STATE_SCRATCH, STATE_PIECES };

struct state {
    struct dmem *pieces;                     /* those that there are, in the order of their places; NULL: none */
    uint32_t places;                         /* bit i: there is one at place i */
    uint32_t flags;                          /* of the work that makes slots, which cannot overflow */
    struct updater *updater;                 /* held; whose slots they are. NULL: none yet */
    struct updater_use use;                  /* it, as it is for this key */
    uint64_t updates;                        /* update counter of the key: sets do not count */
    uint64_t begun;                          /* what it was when the slots began */
    double product;                          /* see update_moment */
};

/* The piece at a place; size 0: none. */
static inline struct dmem state_at(const struct state *s, unsigned place)
{
    uint32_t bit = 1u << place;
    return s->places & bit ? s->pieces[__builtin_popcount(s->places & (bit - 1))] : (struct dmem){0};
}

/* Bytes of the device that the state of a new key of this name and shape takes. */
uint64_t state_needs(const struct updater *u, const struct key_name *name, const struct key_shape *shape);
/* Has the value of such a key to lie in one piece for u? */
bool state_is_whole(const struct updater *u, const struct key_shape *shape);
/* UPDATER_UNFIT with the reason when k cannot be under u: for its type, or because it lies in parts on several devices and
 * u needs sums over the whole. */
enum status state_fits(const struct key *k, const struct updater *u, struct error *e) MUST_CHECK;
/* KEY_FROZEN, with the key and the pattern, when the updater of k's store refuses pushes of it. */
enum status state_takes_push(const struct key *k, struct error *e) MUST_CHECK;
/* Makes the state of k fit u, which it holds. On failure k is as it was. */
enum status state_fit(struct key *k, struct updater *u, struct error *e) MUST_CHECK;
/* What state_fit would make of it now; changes nothing. The origins are those of use's slots. */
struct state_outlook {
    struct updater_use use;
    struct slot_origin origins[STEP_SLOTS_MAX];
    bool goes_on;                            /* the count of updates does, else it begins at 0 */
    uint64_t size_now, size_then;            /* bytes of the device */
    uint64_t size_fresh;                     /* of size_then, what has to be found while all of size_now is there */
};
void state_outlook(const struct key *k, const struct updater *u, struct state_outlook *out);
/* Fills a step of k under state.updater for this update, slots and master included; *product is what it becomes when the
 * step is done. */
void state_step(const struct key *k, const struct update *u, struct step *s, double *product);
/* A step is done. */
void state_stepped(struct key *k, double product);
/* Gives everything back; no work may be under way. */
void state_fini(struct key *k);
/* Frees what states of all keys have left behind and the device may still be at work with. Blocks until it is not. */
void state_leavings_free(struct core *c);

/* ---- seen from outside ------------------------------------------------------------------------------------------ */

/* A slot or the master. */
struct state_piece {
    const char *name;                        /* "momentum", "master" */
    enum dtype dtype;
    uint64_t count, size;                    /* elements, bytes; of a slot of rows or columns, their number */
    unsigned place;
};

/* Fills *out in the order of the rule, the master last; answers how many. Steps that are lined up may change it. */
unsigned state_pieces(const struct key *k, struct state_piece out[STATE_PIECES]);
/* The pieces that it would have if it fitted u; changes nothing. */
unsigned state_expects(const struct key *k, const struct updater *u, struct state_piece out[STATE_PIECES]);
/* Lines up a copy of the piece behind the steps given so far; t runs when *to holds it. *to has piece->size bytes. t may
 * be NULL, here and below, in a turn of the key (key.h), whose end tells the same. */
enum status state_read(struct key *k, const struct state_piece *piece, void *to, struct task *t, struct error *e) MUST_CHECK;
/* The other way. t runs when *from may go. The value does not follow the master: set it first. */
enum status state_write(struct key *k, const struct state_piece *piece, const void *from, struct task *t,
                        struct error *e) MUST_CHECK;
/* Are these counters that a key can have? BAD_ARGUMENT: since > updates, updates of more than can be counted, or a
 * product that is not from 0 to 1. */
enum status state_check_counters(uint64_t updates, uint64_t since_begun, double product, struct error *e) MUST_CHECK;
/* Puts the counters back as they were read: updates, and those since the slots began; they are checked as above. */
enum status state_restore(struct key *k, uint64_t updates, uint64_t since_begun, double product, struct error *e) MUST_CHECK;

#endif
