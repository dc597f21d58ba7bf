/* libparamd: the C client of paramd, and the store inside one process.
 *
 * A *store handle* is opened for a type: `local` and `device` keep the store in this process, `dist_sync` and
 * `dist_async` speak with a daemon. Then the calls are the same: init, push, pull, set_updater, barrier.
 *
 *     struct paramd *kv;  struct paramd_error e;
 *     float w[4] = {1, 1, 1, 1}, g[4] = {2, 2, 2, 2};
 *     int64_t shape[] = {4};
 *     struct paramd_key key = PARAMD_INT(3);
 *     struct paramd_tensor value = {w, PARAMD_F32, 1, shape}, grad = {g, PARAMD_F32, 1, shape};
 *
 *     if (paramd_create("local", NULL, &kv, &e) != 0) { puts(e.text); return 1; }
 *     paramd_init(kv, 1, &key, &value, &e);
 *     paramd_push(kv, 1, &key, &grad, 0, &e);
 *     paramd_pull(kv, 1, &key, &value, 0, &e);            // w is now {2, 2, 2, 2}
 *     paramd_close(kv);
 *
 * Errors. A call answers 0 or one of gRPC's canonical codes; *e then has the code's reason and a sentence with the
 * cure. e may be NULL. Nothing is half done: a call that fails for one key before sending has changed nothing; after
 * that the unit that applies whole is one key.
 *
 * NULL. A handle, a list that is not empty, a type, a method or a place for a result that is NULL is INVALID_ARGUMENT;
 * paramd_close, paramd_op_free and paramd_text_free do nothing with it.
 *
 * Time. Every call ends: with success, or with an error that names what it waited for. The standard deadline is the
 * store's round_timeout + connect_timeout + 10 s.
 *
 * Threads. A handle may be used by several threads; their calls take turns where they must. A background thread sends
 * heartbeats. After fork the child must not use the handle (every call says so) and need not close it.
 *
 * Memory. Names, shapes and tensors are read during the call (blocking calls) or until the operation is finished
 * (started ones). Nothing that is handed in is kept longer or freed. */
#ifndef API_CLIENT_PARAMD_H
#define API_CLIENT_PARAMD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PARAMD_API __attribute__((visibility("default")))

struct paramd;                   /* a store handle */
struct paramd_op;                /* an operation that has been started */

struct paramd_error {
    int status;                  /* gRPC's code: 3 INVALID_ARGUMENT, 4 DEADLINE_EXCEEDED, 5 NOT_FOUND, ... */
    uint32_t retry_ms;           /* when trying again may help; 0: it will not */
    char reason[32];             /* stable code of the distinct refusal: "no-such-key", "shape-mismatch", ... */
    char text[512];              /* a sentence for a person, UTF-8 */
};

/* "NOT_FOUND" for 5 and so on. */
PARAMD_API const char *paramd_status_name(int status);
/* "paramd 0.1.0" */
PARAMD_API const char *paramd_version(void);

/* ---- keys and tensors ------------------------------------------------------------------------------------------- */

/* A key is an integer or a name; the first key of a store decides which, for its life. */
struct paramd_key {
    const char *name;            /* UTF-8, 1..512 bytes without NUL; NULL: the key is `number` */
    size_t name_size;            /* bytes of name; 0: it ends with a zero */
    int64_t number;
};
#define PARAMD_INT(n) {NULL, 0, (n)}
#define PARAMD_STR(s) {(s), 0, 0}

enum {
    PARAMD_F32 = 0, PARAMD_F64 = 1, PARAMD_F16 = 2, PARAMD_BF16 = 3,
    PARAMD_I8 = 4, PARAMD_U8 = 5, PARAMD_I32 = 6, PARAMD_I64 = 7,
    PARAMD_CUDA = 0x100          /* with one of these: data is an address on a GPU */
};

/* A dense array in row-major order, in host memory or, with PARAMD_CUDA, on any GPU that this process sees. Work that
 * is to be done with an array on a GPU before the call reads or writes it must be finished, or have been given to CUDA's
 * default stream. A daemon on the same machine that lends this process a mailbox on its GPU gets such arrays by a copy
 * on the GPU; else they go through host memory. States lie in host memory always, and so do the arrays that a function
 * as updater gets. */
struct paramd_tensor {
    void *data;                  /* only read where it is an input */
    int dtype;
    int ndim;                    /* 0..8 */
    const int64_t *shape;        /* ndim numbers, in elements */
};

struct paramd_info {
    int dtype;
    int ndim;
    int64_t shape[8];
    uint64_t version;            /* 1 after init, one more with each change of the value */
    uint64_t id;                 /* of this creation of the key; never used again */
};

/* ---- a handle --------------------------------------------------------------------------------------------------- */

/* Opens a store. type: words joined by '_' out of local device dist sync async (case does not matter).
 * options: NULL, or a JSON document with any of
 *   "url" "tcp://127.0.0.1:7700" (else PARAMD_URL, else that), "store" "default", "num_workers", "worker_name",
 *   "worker_id" (32 hexadecimal digits; kept over restarts), "round_timeout" 60, "start_timeout" 60,
 *   "connect_timeout" 5, "worker_timeout" 10 (seconds; heartbeats come in a third of it),
 *   "on_reinit" "error" | "replace" | "keep" (else PARAMD_ON_REINIT), "async_default", "on_missing", "min_workers", "on_late", "sum_order", "elastic", "versions_max",
 *   "token" (else PARAMD_TOKEN, else what stands in the file PARAMD_TOKEN_FILE), "engine" "own" | "nanomsg", "bulk"
 *   true | false, "connections" 1 (bulk), "join" true, "mailbox" 134217728 (bytes of the daemon's
 *   GPU for arrays on a GPU; 0: they go through host memory).
 * What is left out is not sent, and agrees with any store that is there. For a daemon's store this connects, creates
 * the store unless it is there, and joins it as a worker; it waits for connect_timeout at most: UNAVAILABLE with the
 * address and the command that starts a daemon.
 *
 * "join": false opens a handle that only looks, whatever the type: the store is neither created nor joined, so that no
 * round will ever wait for this handle. With "store" the store must be there (NOT_FOUND), and paramd_pull,
 * paramd_describe, paramd_set (values up to one frame), paramd_set_updater and paramd_delete work on it; without,
 * paramd_call alone does, and its documents go as they are. What is for workers (init, push, barrier) is refused:
 * FAILED_PRECONDITION "not-joined". */
PARAMD_API int paramd_create(const char *type, const char *options, struct paramd **out, struct paramd_error *e);
/* The same without waiting: the operation is finished when the handle is ready. */
PARAMD_API int paramd_create_start(const char *type, const char *options, struct paramd **out, struct paramd_op **op,
                                   struct paramd_error *e);
/* Leaves the store (best effort, one second at most) and frees the handle. Operations of it must be freed first.
 * NULL is nothing. */
PARAMD_API void paramd_close(struct paramd *kv);
/* Leaves the store: open rounds no longer wait for this worker. The handle can only be closed afterwards. */
PARAMD_API int paramd_leave(struct paramd *kv, struct paramd_error *e);

PARAMD_API const char *paramd_type(const struct paramd *kv);      /* as given, in lower case; lives with the handle */
PARAMD_API int paramd_rank(const struct paramd *kv);
PARAMD_API int paramd_num_workers(struct paramd *kv);             /* as of the last heartbeat */
PARAMD_API int paramd_num_dead(struct paramd *kv);

/* ---- data ------------------------------------------------------------------------------------------------------- */

/* Creates keys. Rank 0's values count; another worker's first init of a key waits for rank 0's and then is OK.
 * ALREADY_EXISTS for a second init by the same worker, or of a key left by an earlier job, and then nothing of the
 * call is applied (see "on_reinit"). Keys must be distinct: INVALID_ARGUMENT. */
PARAMD_API int paramd_init(struct paramd *kv, size_t count, const struct paramd_key *keys,
                           const struct paramd_tensor *values, struct paramd_error *e);

/* Pushes. A key may occur several times: its values are summed first (in the order given; large ones for a store of type
 * nccl in the process by its GPUs, in an order of theirs) and count as one contribution. Answers when every contribution
 * is recorded: it will be counted exactly once. All keys are checked (NOT_FOUND, INVALID_ARGUMENT with both shapes)
 * before anything is sent. priority: larger runs first. */
PARAMD_API int paramd_push(struct paramd *kv, size_t count, const struct paramd_key *keys,
                           const struct paramd_tensor *values, int priority, struct paramd_error *e);

/* Pulls the newest value of each key, all bytes of one version each, after this handle's own pushes of it have been
 * applied. A key may occur several times: all its outputs get the same bytes. A failed push is told here. */
PARAMD_API int paramd_pull(struct paramd *kv, size_t count, const struct paramd_key *keys,
                           struct paramd_tensor *outputs, int priority, struct paramd_error *e);

/* Push, wait until applied, pull. outputs may be NULL: the values are overwritten. An output that does not fit its key
 * is refused before anything is pushed. */
PARAMD_API int paramd_pushpull(struct paramd *kv, size_t count, const struct paramd_key *keys,
                               const struct paramd_tensor *values, size_t output_count,
                               const struct paramd_key *output_keys, struct paramd_tensor *outputs, int priority,
                               struct paramd_error *e);

/* Init, then pull. Outputs have keys of the call, and dtype and shape of their values; else nothing is created. */
PARAMD_API int paramd_broadcast(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                const struct paramd_tensor *values, size_t output_count,
                                const struct paramd_key *output_keys, struct paramd_tensor *outputs, int priority,
                                struct paramd_error *e);

/* Replaces values without the updater. FAILED_PRECONDITION while a round of the key is open, unless force != 0. */
PARAMD_API int paramd_set(struct paramd *kv, size_t count, const struct paramd_key *keys,
                          const struct paramd_tensor *values, int force, struct paramd_error *e);
/* Deletes keys: all, or none when one is unknown or, unless force != 0, has an open round. */
PARAMD_API int paramd_delete(struct paramd *kv, size_t count, const struct paramd_key *keys, int force,
                             struct paramd_error *e);

/* Waits until this handle's pushes of the keys (count 0: of all keys) are applied; a failed one is told. */
PARAMD_API int paramd_wait(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_error *e);

/* dtype, shape and newest version of a key. NOT_FOUND when it was not initialised. */
PARAMD_API int paramd_describe(struct paramd *kv, const struct paramd_key *key, struct paramd_info *out,
                               struct paramd_error *e);

/* ---- the plane: trainers with GPUs ------------------------------------------------------------------------------ */

/* The GPUs of all workers of a dist_sync store and that of its daemon sum gradients among themselves, by NCCL, so that
 * these never lie in host memory. Nothing of this has run on a GPU yet: it is tested on a stand-in.
 *
 * Joins the store's plane with a GPU of this process ("cuda:0"). Answers when all workers of the store have asked and
 * the group is whole; ABORTED "plane-broken" after round_timeout names who is missing. FAILED_PRECONDITION "no-gpu" or
 * "no-plane", UNIMPLEMENTED: why there can be none. NCCL is looked for as libnccl.so.2, or where PARAMD_NCCL says. */
PARAMD_API int paramd_plane_join(struct paramd *kv, const char *device, struct paramd_error *e);
/* Pushes, and with outputs pulls, the same keys each (1024 at most, each once, float32 or float64). Tensors lie in the
 * memory of that GPU (PARAMD_CUDA); what makes a gradient must be done. All workers make the same calls one after
 * another, with the same keys in any order. Answers when the sum has gone through the updater and outputs have the new
 * values: then the call counts for all workers, as one push of each.
 *
 * ABORTED "plane-broken": a worker or its GPU is gone, or called something else; the sentence tells. The handle is on
 * no plane any more, and none of these pushes count, for nobody: push them again, in the next epoch
 * (paramd_plane_join) or the ordinary way. ABORTED "plane-counted": they count for all, but outputs are of no use.
 * What is refused before others heard of it leaves the plane whole. */
PARAMD_API int paramd_plane_push(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                 const struct paramd_tensor *gradients, struct paramd_tensor *outputs,
                                 struct paramd_error *e);
/* Ends the epoch, for all. Nothing when there is none. */
PARAMD_API int paramd_plane_leave(struct paramd *kv, struct paramd_error *e);

/* ---- group and updater ------------------------------------------------------------------------------------------ */

/* Waits for the own pushes to be applied and for all workers to come here. DEADLINE_EXCEEDED names the missing. */
PARAMD_API int paramd_barrier(struct paramd *kv, const char *name, struct paramd_error *e);

/* Sets the updater of the store: a JSON document like {"type": "sgd", "learning_rate": 0.1}; NULL: assign.
 * An equal document changes nothing. INVALID_ARGUMENT lists every fault of the document. */
PARAMD_API int paramd_set_updater(struct paramd *kv, const char *document, struct paramd_error *e);
/* The same with options, a JSON object; NULL: none.
 *   "states" "keep" | "reset" | "convert": what becomes of slots (gpu/updaters.md),
 *   "dry_run" true: only tells,
 *   "etag": of GetUpdater; FAILED_PRECONDITION "etag-mismatch" when the updater is another by now.
 * *answer (answer may be NULL), for paramd_text_free, is the JSON of SetUpdater (api/protocol.md):
 * "changed", "effective_from_version", "first_versions", of a dry run "report" with "warnings"; and
 * "dropped": the numbers that the present updater of this type has and the document does not say,
 * with what they were and the default that they go back to. */
PARAMD_API int paramd_set_updater_with(struct paramd *kv, const char *document, const char *options,
                                       char **answer, struct paramd_error *e);

/* A function as updater, for stores inside the process only. It is called once a key, in the order of keys, on the
 * thread that pushes, before push returns: sum is a private array, stored the value, which it changes in place. An
 * answer other than 0 fails the push (ABORTED "callback-failed") and leaves this and later keys as they were. From
 * inside it no call may use the handle. */
typedef int paramd_update(void *ctx, const struct paramd_key *key, const struct paramd_tensor *sum,
                          struct paramd_tensor *stored);
PARAMD_API int paramd_set_updater_function(struct paramd *kv, paramd_update *update, void *ctx,
                                           struct paramd_error *e);

/* A slot of what an updater keeps for a key ("momentum"); or "master", the value in f32 of an f16 or bf16 key. */
struct paramd_slot {
    const char *name;
    int dtype;
    uint64_t count;              /* elements */
    void *data;                  /* only read where it is an input */
};

struct paramd_state {
    const char *updater;         /* the type whose slots these are: "adam" */
    uint64_t updates;            /* of the key; paramd_set is none */
    uint64_t since_begun;        /* those since its slots began */
    double product;              /* over the steps: nadam's; else 1 */
    size_t slot_count;
    const struct paramd_slot *slots;
};

/* Reads the states of keys, each as it is between two updates, after this handle's own pushes of them have been applied.
 * *out is the finished operation: paramd_op_states has an array of `count`, until paramd_op_free(*out). Keys must be
 * distinct. FAILED_PRECONDITION "updater-incompatible" while a function is the updater: it keeps what it keeps itself. */
PARAMD_API int paramd_get_states(struct paramd *kv, size_t count, const struct paramd_key *keys, struct paramd_op **out,
                                 struct paramd_error *e);
/* Puts states back. All are checked first: each has every slot of the present updater, of its type, dtypes and counts
 * (FAILED_PRECONDITION "updater-incompatible", NOT_FOUND "no-such-slot", INVALID_ARGUMENT), and nothing is changed when
 * one does not fit. The value does not follow a master: set it first. */
PARAMD_API int paramd_set_states(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                 const struct paramd_state *states, struct paramd_error *e);

/* Any JSON method of the protocol ("GetUpdater", "List", "Stats", ...) with this store's id filled in as "store".
 * *answer is for paramd_text_free. */
PARAMD_API int paramd_call(struct paramd *kv, const char *method, const char *json, char **answer,
                           struct paramd_error *e);
PARAMD_API void paramd_text_free(char *text);

/* ---- started operations ----------------------------------------------------------------------------------------- */

/* Each blocking call is "start, wait, free". What is handed in must live until the operation is finished. An operation
 * makes progress while some thread waits on its handle, and otherwise by the background thread. */
PARAMD_API int paramd_init_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                 const struct paramd_tensor *values, struct paramd_op **out, struct paramd_error *e);
PARAMD_API int paramd_push_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                 const struct paramd_tensor *values, int priority, struct paramd_op **out,
                                 struct paramd_error *e);
PARAMD_API int paramd_pull_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                 struct paramd_tensor *outputs, int priority, struct paramd_op **out,
                                 struct paramd_error *e);
/* Only what is newer than newer[i] is fetched; versions[i] gets the version held by then (both may be NULL).
 * outputs of keys that are not newer are left as they are. wait != 0: not finished before something is newer. */
PARAMD_API int paramd_pull_newer_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                       struct paramd_tensor *outputs, const uint64_t *newer, uint64_t *versions,
                                       int wait, int priority, struct paramd_op **out, struct paramd_error *e);
PARAMD_API int paramd_set_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                const struct paramd_tensor *values, int force, struct paramd_op **out,
                                struct paramd_error *e);
PARAMD_API int paramd_wait_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                 struct paramd_op **out, struct paramd_error *e);
PARAMD_API int paramd_barrier_start(struct paramd *kv, const char *name, struct paramd_op **out,
                                    struct paramd_error *e);
PARAMD_API int paramd_call_start(struct paramd *kv, const char *method, const char *json, struct paramd_op **out,
                                 struct paramd_error *e);

PARAMD_API int paramd_get_states_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                       struct paramd_op **out, struct paramd_error *e);
PARAMD_API int paramd_set_states_start(struct paramd *kv, size_t count, const struct paramd_key *keys,
                                       const struct paramd_state *states, struct paramd_op **out,
                                       struct paramd_error *e);

/* Replaces the standard deadline of an operation: so many ms from now. */
PARAMD_API void paramd_op_deadline(struct paramd_op *op, uint32_t ms);
/* Waits at most so long. 1: finished, *result_status and *e tell how. 0: not yet. ms 0 only looks. */
PARAMD_API int paramd_op_wait(struct paramd_op *op, uint32_t ms, int *result_status, struct paramd_error *e);
/* The answer of a finished paramd_call_start; lives with the operation. */
PARAMD_API const char *paramd_op_answer(const struct paramd_op *op);
/* What a finished paramd_get_states_start got, in the order of the keys; lives with the operation. NULL if it failed. */
PARAMD_API const struct paramd_state *paramd_op_states(const struct paramd_op *op);
/* Frees it; one that is not finished is cancelled: its arrays are no longer used when this returns. What has been
 * recorded of it stays recorded. NULL is nothing. */
PARAMD_API void paramd_op_free(struct paramd_op *op);

#ifdef __cplusplus
}
#endif

#endif
