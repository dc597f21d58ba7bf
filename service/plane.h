/* The plane of a sync store: the daemon's GPU and one GPU of each worker as one group (gpu/group.h), so that gradients
 * are summed on their way between GPUs and never lie in host memory. The daemon is rank 0, the workers are ranks 1 to n
 * in the order of their ranks in the store. Nothing of it has run on a GPU: see gpu/group.md.
 *
 * Epochs. FORMING: members of the store ask to join. When all have, the daemon makes an id and everybody joins with it:
 * JOINING. READY: calls are made. BROKEN, as a whole and for good, by whatever goes wrong, and the next ask begins the
 * next epoch with a new id. An epoch has the members that the store had: one who comes or goes breaks it.
 *
 * Calls. A call is a list of keys, each with the worker's next step, and is numbered 1, 2, 3 ... in its epoch. Workers
 * announce it; the daemon compares, and when all of them have announced the same, everybody gives the same collectives
 * to the group: a REDUCE to rank 0 for each key in the order of the list, then, if it pulls, a BROADCAST of each new
 * value. The order is one at all ranks, since who gives call c has given call c - 1, and nobody waits within a
 * collective for one who has not come to it, since no collective of a call is given before all have announced it.
 *
 * Counting. The sums lie in memory of their own. When their mark has passed and the group still says READY, each sum
 * becomes a round that is whole, the contribution of every worker: for all keys of the call, or none. Before that
 * nothing of the store was touched and no step was taken, so who was in a broken call pushes the same steps again, in
 * the next epoch or the ordinary way. While a key is in a call that is not counted, ordinary pushes of it are refused.
 *
 * Core thread only. Nothing waits, but for a broken group that lets go. */
#ifndef SERVICE_PLANE_H
#define SERVICE_PLANE_H

#include "gpu/group_nccl.h"
#include "service/store.h"

enum plane_state { PLANE_FORMING, PLANE_JOINING, PLANE_READY, PLANE_BROKEN };

/* May this store have one? NO_GPU, NO_PLANE (it is no sync store), UNIMPLEMENTED (no NCCL) with the sentence. */
enum status plane_check(const struct store *s, struct error *e) MUST_CHECK;
/* w asks to join the next epoch, whose number is *epoch. From one that is joining or ready it takes itself away, which
 * breaks that. */
enum status plane_join(struct store *s, struct worker *w, uint64_t *epoch, struct error *e) MUST_CHECK;

/* What is to be known of it; state BROKEN and epoch 0: there never was one. */
struct plane_facts {
    uint64_t epoch;
    enum plane_state state;
    unsigned ranks;                  /* 0 while it forms */
    unsigned rank;                   /* of the worker asked for; 0: it has none */
    const struct nccl_id *id;        /* for a worker of an epoch that is joining or ready; else NULL */
    uint64_t left_ms;                /* of the time to join */
    uint64_t called, counted;        /* numbers of the last calls that all have announced, and that count */
    const char *why;                 /* of BROKEN, or NULL */
};
/* w: who asks; NULL: somebody else. That a worker has the id is noted. */
struct plane_facts plane_look(struct store *s, const struct worker *w);

struct plane_entry {
    uint64_t key, step;              /* id; the worker's next */
};
struct plane_announcement {
    uint64_t epoch, number;
    bool pulls;
    size_t count;
    const struct plane_entry *entries;
};
/* w announces a call. A repeat is nothing. PLANE_BROKEN: the epoch is over, perhaps since this call was another than
 * what the others have announced. Any other refusal leaves all as it was. */
enum status plane_call(struct store *s, struct worker *w, const struct plane_announcement *a,
                       struct error *e) MUST_CHECK;

/* Breaks the epoch, if it is still that one and w is in it. why: w's words, may be empty. Answers the number of the last
 * call that counts: what was announced after it does not. */
uint64_t plane_leave(struct store *s, const struct worker *w, uint64_t epoch, struct bytes why);
/* A worker has come to the store; has gone from it (why); is dead, so that nobody need wait for it to ask; has no
 * connection any more, as one whose process has ended. Who is only asked for yet may be without. */
void plane_worker_came(struct store *s, const struct worker *w);
void plane_worker_gone(struct store *s, const struct worker *w, const char *why);
void plane_worker_dies(struct store *s, const struct worker *w, const char *why);
void plane_worker_lost(struct store *s, const struct worker *w);
/* A key goes: a call with it breaks. */
void plane_key_gone(struct store *s, const struct key *k);
/* PLANE_BUSY while the key is in a call that is not counted. */
enum status plane_not_busy(const struct key *k, struct error *e);
void plane_free(struct store *s);

/* ---- conditions, PLANE and COUNTED ---- */

enum wait_state plane_decides(const struct store *s, enum wait_kind kind, uint64_t epoch, uint64_t number,
                              struct error *why);
struct list *plane_waiters(struct store *s);     /* of an epoch that is not over */
/* "waiting for worker 'b' (rank 1)" */
void plane_missing(const struct store *s, uint64_t number, struct buf *out);

/* Marks may have passed; time has come to c->now_ms. Answers when it is to be called next. */
void planes_poll(struct core *c);
uint64_t planes_tick(struct core *c);

#endif
