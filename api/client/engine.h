/* The client's logic without I/O, clock or randomness: sessions, requests in flight with their names, retries,
 * re-sending in order over a rebuilt link, deadlines, and operations as state machines. A simulation runs the same
 * code as a trainer.
 *
 * In: the time (engine_tick), links that came up or went down, answers. Out: the links' send, open and close.
 * Everything is called under one lock; nothing here waits. Operations are made by the functions at the end, run by
 * themselves, and are `finished` at some time; their arrays are the caller's and are not touched after that.
 *
 * A *lane* is a link with what is in flight on it. A daemon's store has three kinds: control (JSON, heartbeats), wait
 * (Wait only, so that waiting delays nothing) and data. A store in this process has one lane for everything. */
#ifndef API_CLIENT_ENGINE_H
#define API_CLIENT_ENGINE_H

#include "api/client/client_options.h"
#include "api/client/link.h"
#include "api/client/paramd.h"
#include "api/wire.h"

struct engine;
struct op;

enum role { ROLE_CONTROL, ROLE_WAIT, ROLE_DATA, ROLE_COUNT };
enum { LANES_MAX = 12 };

struct engine_config {
    const struct client_options *options;        /* lent; outlives the engine */
    uint8_t seed[16];                            /* random: of maps, request ids and back-off */
};

enum status engine_new(const struct engine_config *c, uint64_t now_ms, struct engine **out,
                       struct error *e) MUST_CHECK;
/* All operations must have been freed; links are closed, not freed. */
void engine_free(struct engine *en);
/* Before anything else; first the control lane. embedded: the one link is for all roles. */
enum status engine_add_link(struct engine *en, enum role role, struct link *l, struct error *e) MUST_CHECK;

/* Time has come to now_ms; answers when the next thing is due (UINT64_MAX: nothing). Call it before an operation is
 * begun, too: what is begun counts from the time told last. */
uint64_t engine_tick(struct engine *en, uint64_t now_ms);
/* From a link's run. A link may be closed or reopened before these return. */
void engine_link_up(struct link *l);
void engine_link_down(struct link *l, const struct error *why);
void engine_progress(struct link *l);            /* bytes move: it is not mute */
enum placement engine_place(struct link *l, const struct incoming *in, void **at);
void engine_answer(struct link *l, const struct incoming *in);

/* Facts for the caller. */
bool engine_joined(const struct engine *en);             /* as a worker */
bool engine_has_store(const struct engine *en);
unsigned engine_rank(const struct engine *en);
unsigned engine_num_workers(const struct engine *en);
unsigned engine_num_dead(const struct engine *en);
/* Period of heartbeats; UINT32_MAX: it sends none. */
uint32_t engine_heartbeat_ms(const struct engine *en);
bool engine_busy(const struct engine *en);       /* something is awaited: for an operation, or of a new connection */
/* No connection is being built, and what is under way is small. */
bool engine_is_light(const struct engine *en);
/* Every request that the links have not sent yet follows a small one under way on the same link, so that somebody will
 * soon be there who sends it. */
bool engine_may_gather(const struct engine *en);
uint64_t engine_finished(const struct engine *en);       /* operations so far: tells that some have finished since */
/* Has anything moved since? Then what engine_tick answered is out of date. */
uint64_t engine_activity(const struct engine *en);
/* After this every operation is refused as CLOSED. */
void engine_close_store(struct engine *en);

/* ---- operations ----------------------------------------------------------------------------------------------- */

struct op_result {
    bool finished;
    struct error error;                          /* status OK: it went well */
};

const struct op_result *op_result(const struct op *op);
/* Forgets it: cancelled if it is not finished. Its arrays are not used after this. NULL is nothing. */
void op_release(struct op *op);
void op_set_deadline(struct op *op, uint32_t ms);
uint64_t op_deadline(const struct op *op);
/* The document that a finished JSON call was answered with, ended by a zero; lives with the operation. NULL: of any
 * other. */
const char *op_answer(const struct op *op);

/* What a call of the library names. Lent until the operation is finished. */
struct tensors {
    size_t count;
    const struct paramd_key *keys;
    const struct paramd_tensor *values;
    int priority;
};

/* Connects, creates the store and joins it. */
enum status op_create(struct engine *en, struct op **out, struct error *e) MUST_CHECK;
enum status op_init(struct engine *en, const struct tensors *t, struct op **out, struct error *e) MUST_CHECK;
/* As op_init, refused before anything is sent unless the outputs have the keys, dtypes and shapes of values of t. */
enum status op_init_for(struct engine *en, const struct tensors *t, const struct tensors *outputs, struct op **out,
                        struct error *e) MUST_CHECK;
enum status op_push(struct engine *en, const struct tensors *t, struct op **out, struct error *e) MUST_CHECK;
enum status op_set(struct engine *en, const struct tensors *t, bool force, struct op **out, struct error *e) MUST_CHECK;

struct pull_newer {
    const uint64_t *newer;       /* NULL: always */
    uint64_t *versions;          /* NULL: not wanted */
    bool wait;                   /* until something is newer */
};
/* newer: NULL for a plain pull. */
enum status op_pull(struct engine *en, const struct tensors *t, const struct pull_newer *newer, struct op **out,
                    struct error *e) MUST_CHECK;
/* Only checks that op_pull would find every key, with an output that fits. */
enum status op_check_outputs(struct engine *en, const struct tensors *t, struct op **out, struct error *e) MUST_CHECK;
/* Until the pushes of the keys (count 0: all keys) are applied. */
enum status op_wait(struct engine *en, size_t count, const struct paramd_key *keys, struct op **out,
                    struct error *e) MUST_CHECK;
enum status op_barrier(struct engine *en, const char *name, struct op **out, struct error *e) MUST_CHECK;
/* The states of keys, each once, after the own pushes of them are applied. */
enum status op_get_states(struct engine *en, size_t count, const struct paramd_key *keys, struct op **out,
                          struct error *e) MUST_CHECK;
/* states: lent until it is finished. */
enum status op_set_states(struct engine *en, size_t count, const struct paramd_key *keys,
                          const struct paramd_state *states, struct op **out, struct error *e) MUST_CHECK;
/* What a finished op_get_states got, in the order of the keys; lives with the operation. NULL: of any other. */
const struct paramd_state *op_states_at(const struct op *op);
/* members: of a JSON document, without its braces ("" or "\"keys\":[1]"); "store" is put before them unless `whole`. */
enum status op_json(struct engine *en, unsigned method, struct bytes members, bool whole, struct op **out,
                    struct error *e) MUST_CHECK;
/* After keys were deleted: what was known of them is forgotten. */
void engine_forget(struct engine *en, size_t count, const struct paramd_key *keys);

/* A call on the plane of the store (service/plane.h). Lent until it is finished. */
struct plane_call {
    uint64_t epoch, number;
    struct tensors tensors;
    const struct paramd_tensor *outputs;         /* NULL: it does not pull */
};
/* Announces it; finished when all workers have announced the same. */
enum status op_plane_call(struct engine *en, const struct plane_call *c, struct op **out, struct error *e) MUST_CHECK;
/* Of a finished one: the index in the call of what comes at place i of the order that all keep; whether the daemon may
 * have heard it; and what is to be known of the keys: the pushes count, or nobody can say. */
size_t op_plane_at(const struct op *op, size_t i);
bool op_plane_announced(const struct op *op);
void op_plane_counted(struct op *op);
void op_plane_forget(struct op *op);
/* Until the daemon says so of an epoch and a call; an epoch that is over ends it. */
enum status op_plane_wait(struct engine *en, enum wait_kind kind, uint64_t epoch, uint64_t number, struct op **out,
                          struct error *e) MUST_CHECK;

/* The contributions of one push: keys in the order in which they are handled, and for each the sum of its values. */
struct contribution {
    size_t index;                /* in the call: of the first value */
    const void *data;            /* that value, or the sum of several */
    uint64_t size;
};
/* An operation that only looks the keys up and sums, for a function as updater. */
enum status op_sums(struct engine *en, const struct tensors *t, struct op **out, struct error *e) MUST_CHECK;
size_t op_sums_count(const struct op *op);
struct contribution op_sums_at(const struct op *op, size_t at);

#endif
