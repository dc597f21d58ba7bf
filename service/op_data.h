/* The inside of the methods that carry tensor bytes. op_data.c reads frames of Init, Push and Set and sees their bytes
 * to their place; what their entries mean is said in op_push.c (Push, Set) and op_init.c; op_pull.c and op_wait.c stand
 * for themselves. Core thread only; nothing waits. */
#ifndef SERVICE_OP_DATA_H
#define SERVICE_OP_DATA_H

#include "service/op.h"

/* An Init, Push or Set entry in hand. */
struct entry {
    struct wire_push_entry push;             /* push, set */
    struct wire_init_entry init;             /* init, with: */
    struct key_name name;
    struct key_shape shape;
    uint64_t offset, size, total;            /* of either */
};

/* What the fixed fields say. */
struct batch {
    enum staging_kind kind;
    struct store *store;
    struct worker *worker;                   /* NULL: a set by one who has not joined, or an operator's init */
    bool lowest;                             /* init: no present worker has a lower rank */
    struct reader entries;
    uint32_t count;
    uint32_t store_id;
    bool sums;                               /* a push in this process, of values to be summed: incoming.values */
    uint64_t call;
    enum on_reinit on_reinit;
    bool force;
};

struct set;                                  /* one Set request, see op_push.c */

/* How many values of a frame are complete, and of the pushes among them how many have been applied. */
struct landed {
    uint32_t complete, applied;
};

/* A frame of Init, Push or Set whose entries come to their place, in pieces of a turn each. Store and worker are found
 * anew for each piece, as they may have gone between two. */
struct land {
    struct frame_job frame;
    struct batch batch;                      /* its reader stands at entry `next` */
    struct set *set;
    struct answer answer;                    /* of the method; land_piece adds the faults */
    uint32_t next;
    uint64_t at;                             /* of the body, used so far */
    struct landed done;
};

/* ---- shared, op_data.c ---- */

enum status data_find_store(struct server *s, uint32_t id, struct store **out, struct error *e) MUST_CHECK;
/* `count` entries of at least `size` bytes each: as many as descriptors and ENTRIES_MAX allow. */
enum status data_check_count(uint32_t count, struct bytes desc, size_t size, struct error *e) MUST_CHECK;
/* The entry is of a value of `whole` bytes and lies within it. */
enum status data_check_extent(const struct entry *x, uint64_t whole, struct error *e) MUST_CHECK;
/* Fixed fields, store and worker of an Init, Push or Set. */
enum status data_read(struct peer *p, const struct incoming *in, struct batch *b, struct error *e) MUST_CHECK;
/* The next entry. b->entries.failed: where the one after it begins is not known. */
enum status data_read_entry(struct batch *b, struct entry *x, struct error *e) MUST_CHECK;
/* The store and the worker of a batch as they are by now. */
enum status data_find(struct peer *p, struct batch *b, uint32_t store, struct error *e) MUST_CHECK;
/* Has the processor fetch the keys of entries that come soon; each begins with the key's id and has `size` bytes. */
void data_look_ahead(const struct store *s, const struct reader *entries, size_t size);
/* Has the worker been told all that there is to tell of this push, were it asked now? */
bool data_is_applied(const struct batch *b, const struct entry *x);
/* Takes the bytes of entries to their place, as many as a turn has time for; faults go to the answer. true: there are no
 * more. */
bool land_piece(struct land *l);

/* ---- one for each kind: read; open (is it wanted, and where do its bytes go); complete (its bytes are whole) ----
 * open: *out is the staging, or *repeat says that the bytes do not matter. complete takes the staging. */

enum status push_read(const struct incoming *in, struct batch *b, uint32_t *store, struct error *e) MUST_CHECK;
enum status push_read_entry(struct batch *b, struct entry *x, struct error *e) MUST_CHECK;
/* fed: its bytes come out of a mailbox. */
enum status push_open(struct batch *b, const struct entry *x, uint64_t sequence, bool fed, struct staging **out,
                      bool *repeat, struct error *e) MUST_CHECK;
enum status set_open(struct batch *b, const struct entry *x, uint64_t sequence, struct staging **out,
                     struct error *e) MUST_CHECK;
enum status set_complete(struct batch *b, struct staging *st, struct set *set, struct error *e) MUST_CHECK;
enum status init_read(const struct incoming *in, struct batch *b, uint32_t *store, struct error *e) MUST_CHECK;
enum status init_read_entry(struct batch *b, struct entry *x, struct error *e) MUST_CHECK;
enum status init_open(struct batch *b, const struct entry *x, struct staging **out, bool *repeat,
                      struct error *e) MUST_CHECK;
enum status init_complete(struct batch *b, struct staging *st, struct error *e) MUST_CHECK;

/* Sends what became of a Push. */
void push_answer(const struct request *r, struct answer *a, struct landed done);

/* ---- through a mailbox, op_mailbox.c ---- */

/* Where `size` bytes of the client's mailbox are that an entry names. NO_MAILBOX, BAD_ARGUMENT. */
enum status box_at(const struct session *s, const struct wire_place *place, uint64_t size, void **at,
                   struct error *e) MUST_CHECK;
/* One entry's worth of the body of a request with WIRE_FLAG_MAILBOX, for each of `count` entries. */
enum status box_places(const struct incoming *in, uint32_t count, struct reader *out, struct error *e) MUST_CHECK;
/* Answers a Push whose values lie in a mailbox, when they have been copied from there. */
void mailbox_push(struct request *r, const struct incoming *in, struct batch *b);

#endif
