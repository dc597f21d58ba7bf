/* Rounds of a sync store: all pushes of one key with one step. A round opens with its first contribution, knows whom
 * it misses, and closes when nobody is missing; then the sum and the updater run. Members contribute distinct pushes;
 * requests are not counted. The first contribution becomes the accumulator, the last is added in the pass that runs
 * the updater (sum_order arrival); or all are held and summed by rank, the same bits on every run (rank). */
#ifndef SERVICE_ROUND_H
#define SERVICE_ROUND_H

#include "service/key.h"
#include "service/worker.h"

struct round {
    struct update update;            /* what closing it starts */
    struct list_node node;           /* store->rounds, in the order of opening */
    struct key *key;
    uint64_t step;
    uint64_t stamp;                  /* of its opening */
    uint64_t opened_ms;
    uint64_t job;                    /* whose workers the bits mean */
    uint64_t *bits;                  /* who contributed, by worker slot */
    size_t words;
    uint32_t missing;                /* members that are needed and have not contributed */
    struct list held;                /* contributions kept for summing by rank */
    struct carried {                 /* late pushes of earlier steps that it took in */
        struct worker *worker;       /* held */
        uint64_t step;
    } *carried;
    size_t carried_count, carried_capacity;
    bool has_reservation;            /* staging room is kept for the next missing contribution */
    bool closed;                     /* its update is lined up */
    uint64_t charged;                /* bytes of the staging budget that its sum takes */
    struct share *share;             /* held; of the client that opened it, on whom they and the reservation count */
};

/* The open round of this step, or NULL. */
struct round *round_find(const struct key *k, uint64_t step);
/* ROUND_OPEN for whoever would change or delete the key while a round of it is open; it says how to force that. PLANE_BUSY
 * while it is pushed on a plane. */
enum status round_none_open(const struct key *k, struct error *e);
bool round_has(const struct round *r, const struct worker *w);
bool round_needs(const struct round *r, const struct worker *w);

/* Takes a complete contribution of w for `step` into its round, opening it if need be (sync); one whose own step
 * (s->tag) is another is carried. Takes s, also when it fails. */
enum status round_contribute(struct key *k, struct worker *w, uint64_t step, struct staging *s,
                             struct error *e) MUST_CHECK;
/* A round that is whole from the start: of each of the workers a contribution, whose sum is known. It changes nothing
 * until it is closed, which takes the sum, or made void: then it has never been. Both before anything else is done with
 * the key; opened_before: the key's opened_step before it. */
enum status round_whole_new(struct key *k, uint64_t step, struct worker *const *workers, size_t count,
                            struct round **out, struct error *e) MUST_CHECK;
void round_whole_close(struct round *r, struct dmem *sum);
void round_whole_void(struct round *r, uint64_t opened_before, const struct error *why);
/* Closes it if nobody is missing and the job has started. */
void round_check(struct round *r);
/* Ends it without an update; every contributor is told. */
void round_fail(struct round *r, const struct error *why);
/* "waiting for worker 'b' (rank 1), worker 'c' (rank 2)" */
void round_missing(const struct round *r, struct buf *out);
/* A membership change, for all open rounds of the store. */
void rounds_joined(struct store *s, struct worker *w);
void rounds_left(struct store *s, struct worker *w, const struct error *fail);
/* Fails those whose time is up; answers the next deadline. */
uint64_t rounds_tick(struct store *s, uint64_t now_ms);

#endif
