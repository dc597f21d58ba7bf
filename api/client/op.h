/* Operations from the inside: what the engine, the steps that operations share and the operations themselves know of
 * each other. Not for others.
 *
 * An operation says where it has something to send (op_want) and is asked for it (next) when there is room: so a
 * terabyte can be pushed with a few requests in memory, and what has the highest priority goes first. */
#ifndef API_CLIENT_OP_H
#define API_CLIENT_OP_H

#include "api/client/engine.h"
#include "api/client/gpu.h"
#include "api/client/keys.h"

struct lane;

/* ---- requests --------------------------------------------------------------------------------------------------- */

enum call_kind { CALL_OWN, CALL_DESCRIBE, CALL_WAIT };
enum call_state { CALL_NEW, CALL_FLIGHT, CALL_AGAIN, CALL_LATER, CALL_CLOSED };

/* One request, until it is answered for good. */
struct call {
    struct list_node node;       /* of the lane's list for its state */
    struct op *op;               /* open calls keep it alive */
    struct lane *lane;
    enum call_kind kind;
    enum call_state state;
    uint8_t method;
    uint16_t flags;
    uint64_t sequence;           /* 0: no name */
    uint32_t refused;            /* times */
    uint64_t retry_at;
    struct buf fixed, desc, body;
    struct segment *segments;    /* the body; NULL: it is `body` */
    size_t segment_count;
    const void *const *values;   /* the operation's, see outgoing */
    size_t value_count;
    uint64_t body_size;
    size_t answer_size;          /* at most, roughly */
    struct outgoing out;
    uint32_t id;                 /* of the last sending */
    bool in_link;                /* out is the link's */

    /* the operation's: */
    void **items;                /* its entries, freed with the call */
    size_t item_count;
    uint64_t offset, size;       /* of a part */

    bool on_gpu;                 /* of a Pull: its values go there */

    /* the mailbox's: */
    uint64_t box;                /* in which it has a slot; 0: none */
    unsigned slot;
    uint64_t slot_at;            /* where that begins */
};

/* NULL: no memory, and the operation has been ended. */
struct call *call_new(struct op *op, unsigned method) MUST_CHECK;
void call_free(struct call *c);
/* Makes room for items and for segments; false: no memory. */
bool call_items(struct call *c, size_t count) MUST_CHECK;
bool call_segments(struct call *c, size_t count) MUST_CHECK;
void call_segment(struct call *c, const void *at, size_t size, const void *owner);
/* A refused request, to be sent again in `ms` under the same name. */
void call_retry(struct call *c, uint32_t ms);

/* What is left of an answer to read. */
struct answer_reader {
    struct reader results;
    struct bytes body;
};
struct answer_reader answer_of(const struct incoming *in);
/* The fault as an error with its sentence. */
bool answer_next_fault(struct answer_reader *a, uint32_t *index, struct error *out);

/* ---- operations ------------------------------------------------------------------------------------------------- */

/* What a handle must have for an operation; one that joined has all of it. */
enum need { NEED_STORE, NEED_NOTHING, NEED_MEMBER };

/* Handlers may end the operation (op_finish, op_fail), and after that they are no more called, but for `closed`. */
struct op_ops {
    const char *name;            /* "push" */
    enum need need;              /* of a handle that only looks */
    size_t size;                 /* of the struct that begins with struct op */
    void (*resolved)(struct op *op);                     /* all keys asked for are known */
    void (*waited)(struct op *op);                       /* what was waited for has come */
    void (*settled)(struct op *op);                      /* turns of keys have ended */
    struct call *(*next)(struct op *op, enum role role); /* NULL: nothing to send there now */
    /* A call is over; why: it failed for good. in is NULL when it was lost. Also called after the end of the
     * operation, when the caller's arrays are no longer there: see op->result.finished. */
    void (*answer)(struct op *op, struct call *c, const struct incoming *in, const struct error *why);
    enum placement (*place)(struct op *op, struct call *c, const struct incoming *in, void **at);
    void (*wake)(struct op *op);                         /* op->wake_at has come */
    void (*ended)(struct op *op);                        /* finished or cancelled: give turns back that are not sent */
    void (*free)(struct op *op);
    void (*what)(const struct op *op, struct buf *out);  /* "key 3, key 4": for sentences */
};

/* A condition to wait for. */
struct cond {
    uint32_t kind;               /* enum wait_kind */
    uint8_t state;               /* enum wait_state */
    struct key *key;             /* of a ticket: told how far it is applied */
    uint64_t id;
    uint64_t number;
    uint64_t version;            /* when done */
    struct key_name name;        /* WAIT_INIT */
};

struct op {
    struct list_node node;               /* of engine->ops while unfinished */
    struct list_node ready[ROLE_COUNT];  /* while it has something to send there */
    const struct op_ops *ops;
    struct engine *engine;
    struct op_result result;
    int priority;
    bool released;                       /* nobody looks at it any more */
    unsigned calls;                      /* open */
    uint64_t begun, deadline, wake_at;
    struct error hint;                   /* why it is not finished yet; status OK: not known */

    struct key **held;                   /* keys that it uses, each once */
    size_t held_count, held_capacity;
    uint64_t stamp;                      /* marks the keys that it holds */
    size_t asked, told;                  /* of `unknown` */
    struct key **unknown;
    size_t unknown_count, unknown_capacity;
    bool resolving, outside;             /* outside: a worker found dead was told no steps */

    struct cond *conds;
    size_t cond_count, cond_capacity;
    size_t cond_done, cond_want;
    size_t wait_from;                    /* where the next request begins to take conditions */
    bool waiting;
    const struct call *wait_call;        /* the request that counts; NULL: to be sent */
    size_t quiet_left;
};

/* Allocates and begins an operation: refused when the handle is lost, closed or (unless `early`) not joined. */
enum status op_new(struct engine *en, const struct op_ops *ops, bool early, struct op **out,
                   struct error *e) MUST_CHECK;
/* One that could not be begun: frees it without a word. */
void op_abandon(struct op *op);
void op_finish(struct op *op);
void op_fail(struct op *op, const struct error *e);
/* The operation has something to send on lanes of this role. */
void op_want(struct op *op, enum role role);
void op_wake_at(struct op *op, uint64_t ms);
void op_hint(struct op *op, const struct error *e);
void op_call_over(struct op *op);        /* one open call less: the last act on a call */

/* Looks a key up in the table and holds it; *index tells which of the operation's keys it is, `is_new` whether for the
 * first time. */
enum status op_hold(struct op *op, const struct paramd_key *k, size_t *index, bool *is_new,
                    struct error *e) MUST_CHECK;
/* The same for a key of the table that it does not hold yet. */
enum status op_hold_found(struct op *op, struct key *k, struct error *e) MUST_CHECK;
/* Describes what is not known of the held keys; `resolved` follows, perhaps from inside. NOT_FOUND ends it. */
void op_resolve(struct op *op);
bool key_is_known(const struct engine *en, const struct key *k);

enum status op_cond(struct op *op, const struct cond *c, struct error *e) MUST_CHECK;
/* Waits for `want` of the conditions; a failed one ends the operation. `waited` follows, perhaps from inside. */
void op_wait_for(struct op *op, size_t want);
void op_conds_clear(struct op *op);
/* Conditions for the own pushes of a key that are recorded and not known to be applied. */
enum status op_cond_pushes(struct op *op, struct key *k, struct error *e) MUST_CHECK;
void op_quiet(struct op *op);

struct call *op_step_next(struct op *op, enum role role);
void op_step_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why);

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

/* Checks a tensor of the caller by itself. */
enum status tensor_check(struct gpu *g, const struct paramd_tensor *t, const struct paramd_key *k, uint64_t *size,
                         struct error *e) MUST_CHECK;
/* Against the key: both named, and the cure for numpy's standard type. */
enum status tensor_fits(const struct paramd_tensor *t, const struct key *k, struct error *e) MUST_CHECK;
/* Of the same dtype and shape? Both are sound. */
bool tensors_match(const struct paramd_tensor *a, const struct paramd_tensor *b);
static inline bool tensor_on_gpu(const struct paramd_tensor *t) { return t->dtype & PARAMD_CUDA; }
/* Its dtype without the bit that says where it lies. */
static inline int tensor_dtype(const struct paramd_tensor *t) { return t->dtype & ~PARAMD_CUDA; }
/* A copy in host memory of a value on a GPU; *out is for mem_free. */
enum status tensor_fetch(struct gpu *g, const struct paramd_tensor *t, uint64_t size, void **out,
                         struct error *e) MUST_CHECK;
/* The sum of values of one key in its own type. OUT_OF_RANGE when an integer does not fit. *out is for mem_free. */
enum status tensor_sum(struct gpu *g, const struct tensors *t, const size_t *indices, size_t count, const struct key *k,
                       void **out, struct error *e) MUST_CHECK;

/* Values of a request, laid out in its body: small ones are copied together, large ones are sent from where they
 * lie. */
struct piece {
    const void *at;
    uint64_t size;
};
bool call_lay_out(struct call *c, const struct piece *pieces, size_t count, const void *owner) MUST_CHECK;

/* ---- engine ----------------------------------------------------------------------------------------------------- */

struct session {
    bool known;                  /* HELLO has been answered once */
    struct wire_id instance;
    uint32_t session, epoch, heartbeat_ms;
    uint64_t part_max, window;
    unsigned in_flight_bulk, in_flight_small;
    uint64_t box_max;                    /* bytes of a mailbox that it would give; 0: none */
};

enum { BOX_SLOTS = 16 };

/* See box.h. */
struct box {
    enum { BOX_UNASKED, BOX_ASKING, BOX_OPEN, BOX_NONE } state;
    uint64_t id;
    void *at;
    uint64_t slot_size;
    uint32_t taken;                      /* bit i: slot i is a request's */
    bool full;                           /* somebody waits for a slot */
    const struct lane *lane;             /* whose connection has it */
    struct op *op;                       /* that asks for it, or NULL */
};

struct engine {
    const struct client_options *options;
    uint64_t now;
    uint64_t due;                        /* of operations: nothing before this */
    uint64_t random;
    uint32_t next_id;
    uint64_t sequence;
    uint64_t inits;
    uint64_t stamp;

    struct lane *lanes[LANES_MAX];
    unsigned lane_count;
    struct session session;
    struct address bulk;
    bool has_bulk, bulk_failed;          /* told in HELLO; could not be reached */
    uint64_t in_flight;                  /* bytes of pushes */

    struct gpu gpu;
    struct box box;
    struct keys *keys;
    struct list ops;
    struct list ready[ROLE_COUNT];
    uint64_t finished;
    uint64_t activity;                   /* counts what was sent, opened and reported */
    bool pumping, pump_again;

    struct error lost;                   /* not OK: the store is gone for this handle */
    bool closed, joined;
    uint64_t joining;                    /* number of the present joining */
    struct op *rejoin, *heartbeat;       /* own operations under way, or NULL */
    uint64_t heartbeat_at;
    uint32_t heartbeat_ms;               /* period, told at Join */
    uint32_t store, rank, num_workers, num_dead;
    uint32_t round_ms;                   /* the store's round_timeout */
};

void engine_pump(struct engine *en);
/* Ends everything: no operation will ever do any more. */
void engine_lose(struct engine *en, const struct error *why);
/* The daemon does not count us as a worker any more: join again. */
void engine_rejoin(struct engine *en);
/* The operation that does it: the second half of op_create. */
enum status op_rejoin(struct engine *en, struct op **out, struct error *e) MUST_CHECK;
void engine_due(struct engine *en, uint64_t at);
uint64_t engine_sequence(struct engine *en);
void engine_read_join(struct engine *en, struct bytes document);
/* What counts as joined for a handle that only looks. */
void engine_begin_looking(struct engine *en);
/* Takes the arrays of `op` out of the links. */
void engine_detach(struct engine *en, struct op *op);
/* "no connection to tcp://... for 3 s: connection refused", or false when lanes are up. */
bool engine_trouble(const struct engine *en, struct error *e);

#endif
