/* The inside of the server: connections, clients, requests, answers. Shared by server.c (frames and dispatch),
 * session.c (clients and repeats) and op_*.c (what the methods do). Core thread only. */
#ifndef SERVICE_OP_H
#define SERVICE_OP_H

#include "service/server.h"
#include "service/share.h"
#include "service/staging.h"
#include "service/state_copy.h"
#include "service/store.h"
#include "service/wait.h"

#include <jansson.h>

#define REASON_ONE(...) + 1
enum { REASONS_END = 0 REASONS(REASON_ONE) };
enum { RESULT_SIZE_MAX = 64, PINS_MAX = 64 };

/* One named request and what it was answered. */
struct named_result {
    uint64_t sequence;
    uint8_t method, size;
    bool running;                    /* not answered yet */
    uint8_t bytes[RESULT_SIZE_MAX];
};

/* A version kept for a client that pulls it in parts. */
struct pin {
    struct version *version;         /* held; NULL: free place */
    uint64_t left;                   /* bytes not yet asked for */
    uint64_t touched_ms;
};

/* Memory of the GPU that a client on this machine has open, too (api/protocol.md section 6). It belongs to the
 * connection that asked for it, and ends with it; its memory goes when the device has no work there either. */
struct box {
    uint64_t id;
    struct server *server;
    const struct peer *peer;
    struct dmem mem;
    unsigned holds;                  /* the session's, and requests whose values are on their way */
};

/* A client: one start of one process. Several connections share it. */
struct session {
    struct list_node node;           /* server->sessions, the one longest silent first */
    struct server *server;
    struct wire_id id;
    uint32_t number;
    uint32_t epoch;
    char *name;
    bool stale;                      /* a newer start has said hello */
    uint64_t seen_ms;
    unsigned peers;
    uint32_t requests;               /* kept ones, which still point here */
    uint32_t waits;                  /* of them, Waits that hang */
    struct share *share;             /* held */
    struct worker **workers;         /* held; the stores it joined */
    size_t worker_count, worker_capacity;
    struct named_result *window;     /* by sequence modulo window_size; NULL: none, or packed */
    size_t window_size;              /* a power of two, which grows up to DEDUPE_WINDOW as it has to */
    struct buf packed;               /* the window of one who has been idle, see window_pack */
    uint64_t highest;                /* sequence */
    struct pin pins[PINS_MAX];
    struct state_copies copies;      /* of states, that are fetched in parts */
    struct box *box;                 /* held; NULL: it has none */
};

/* What server_place decided about the frame that a connection is receiving. */
struct placed {
    bool decided;
    bool repeat;                     /* recorded already: the bytes do not matter */
    bool failed;
    struct landing landing;          /* where the bytes go */
    struct error error;
};

struct peer {
    struct list_node node;           /* server->peers */
    struct server *server;
    const struct peer_ops *ops;
    void *link;
    struct session *session;         /* NULL before HELLO */
    char *address;
    unsigned wrong_tokens;           /* that came over it */
    struct placed placed;
    struct list requests;            /* kept ones */
    struct frame_job *frame;         /* works on the frame in hand in later turns; NULL: none does */
};

struct server {
    struct core core;
    struct server_config config;
    char *token;
    char *advertise;
    char *bulk_path;
    char *host;
    struct list sessions;
    struct map *by_id;
    size_t session_count;
    size_t own_sessions;             /* of them, those of the daemon's own doors */
    uint32_t next_session;
    uint32_t next_epoch;
    uint64_t next_box;
    uint64_t box_bytes;              /* of all mailboxes */
    struct list peers;
    bool draining;
    uint64_t started_ms;
    uint64_t expire_ms;              /* when clients and pins are next looked through */
    uint64_t turn_ns_max;            /* processor time of the longest turn */
    uint64_t frames, frames_refused;
    uint64_t refused[REASONS_END];               /* requests and entries of them, by reason */
    uint64_t connections_refused[REASONS_END];   /* by reason */
};

/* A request in hand. On the stack while it is handled; request_keep makes one that lives until it is answered. */
struct request {
    struct list_node node;           /* peer->requests when kept */
    struct server *server;
    struct peer *peer;               /* NULL: its connection is gone, the answer goes nowhere */
    struct session *session;
    uint32_t id;
    bool holds;                      /* its connection is held until it is freed */
    struct wire_header header;
};

struct request *request_keep(const struct request *r) MUST_CHECK;
void request_free(struct request *r);        /* NULL is nothing */
/* Begins a job for a kept request, which the job frees when it is done. What follows the request on its connection waits
 * for that, if it is not done at once. */
void request_begin(struct request *kept, struct job *j);

/* ---- frames of many entries, in pieces ---- */

/* Lies first in what a method knows of its frame. `run` answers and gives everything back when it is done, but the struct
 * itself. */
struct frame_job {
    struct job job;
    struct request request;
    struct incoming in;
    bool (*run)(struct frame_job *f);        /* the next piece; true: it is done */
    void (*drop)(struct frame_job *f);       /* the connection is gone, and the frame with it: gives everything back */
};
/* f lies at the begin of `size` bytes on the stack. What is not done in this turn goes on as a copy on the heap, and the
 * connection is held; where it cannot be, all is done now. */
void frame_begin(struct frame_job *f, size_t size);
/* For `run`: shall the rest wait for a later turn? */
static inline bool frame_is_spent(const struct frame_job *f) { return core_is_spent(&f->request.server->core); }

/* ---- answers: each request gets exactly one ---- */

/* An answer under construction. Zeroed, then filled; answer_send takes what it holds. */
struct answer {
    struct buf fixed;
    struct buf desc;
    struct buf faults;               /* written behind desc */
    uint32_t fault_count;
    struct buf fault_text;           /* written behind the body */
    struct buf small;                /* bytes that were copied */
    struct piece {                   /* the body, in order */
        struct version *version;     /* held; NULL: from `small` */
        uint64_t offset, size;
    } *pieces;
    size_t piece_count, piece_capacity;
    uint64_t body_size;
    bool failed;                     /* no memory: an error is sent in its place */
};

void answer_send(const struct request *r, struct answer *a);
/* A named request is forgotten with it: its repeat is a new try. */
void answer_error(const struct request *r, const struct error *e);
/* A repeat is refused; what is known of the first copy stays. */
void answer_refusal(const struct request *r, const struct error *e);
void answer_text(const struct request *r, const char *text, size_t size);
/* Appends the document as text, with jansson's flags; false: no memory. The document may be NULL: no memory for it. */
bool json_text(const json_t *document, size_t flags, struct buf *out);
/* Takes the reference. NULL (no memory) becomes an error. Kept in the window when the request was named. */
void answer_json(const struct request *r, json_t *document);
void answer_fault(struct answer *a, uint32_t index, const struct error *e);
/* Zeros to 16, then bytes that are copied, or that lie in a version (which is held until they are sent). */
void answer_copy(struct answer *a, const void *from, uint64_t size);
void answer_refer(struct answer *a, struct version *v, uint64_t offset, uint64_t size);
void answer_fini(struct answer *a);

/* ---- sessions ---- */

enum status session_hello(struct server *s, const struct wire_header *h, struct bytes name, struct session **out,
                          struct error *e) MUST_CHECK;
void session_attach(struct session *s, struct peer *p);
void session_detach(struct peer *p);
/* A sign of life, for all stores it joined. */
void session_touch(struct session *s);
void sessions_expire(struct server *s);
void sessions_free(struct server *s);
/* The worker that this client is in the store; NOT_JOINED (with what to do), STALE_EPOCH. */
enum status session_worker(struct session *s, const struct store *store, struct worker **out,
                           struct error *e) MUST_CHECK;
enum status session_join(struct session *s, struct store *store, struct bytes name, struct worker **out,
                         struct error *e) MUST_CHECK;
void session_leave(struct session *s, struct worker *w);

enum repeat { REPEAT_FRESH, REPEAT_DONE, REPEAT_REFUSED };
/* Has the name of this request been seen? FRESH marks it as running; it ends with session_result or session_forget.
 * REFUSED, with the reason in *e: the first copy is still running, or it is too old to know. */
enum repeat session_repeat(struct session *s, const struct wire_header *h, const struct named_result **out,
                           struct error *e);
/* The same without marking anything. */
bool session_known(struct session *s, uint64_t sequence);
void session_result(struct session *s, uint64_t sequence, const void *bytes, size_t size);
void session_forget(struct session *s, uint64_t sequence);

void session_pin(struct session *s, struct version *v, uint64_t sent, uint64_t total);
void session_unpin_revoked(struct session *s, const struct version *v);

/* ---- mailboxes, op_mailbox.c ---- */

/* What HELLO says of mailboxes: null where there are none. */
json_t *mailbox_offer(const struct server *s);
/* Gives the client of the request a mailbox of `size` bytes in place of the one it has, and answers; 0: takes that
 * back. */
void mailbox_open(struct request *r, struct bytes host, uint32_t size);
struct box *box_hold(struct box *b);
void box_drop(struct box *b);                /* NULL is nothing */
/* The connection ends, or speaks for another: what it has brought goes. */
void box_peer_gone(struct session *s, const struct peer *p);

/* ---- what JSON methods read, op_json.c ---- */

/* Refuses members that the method does not have: ONLY("store", "keys"). */
enum status only(json_t *in, const char *const *known, struct error *e) MUST_CHECK;
#define ONLY(...) ((const char *const[]){__VA_ARGS__, NULL})
/* One that is not needed is empty when left out. */
enum status get_text(json_t *in, const char *name, bool needed, struct bytes *out, struct error *e) MUST_CHECK;
/* A whole number from 1 to `most`; `standard` when left out. */
enum status get_count(json_t *in, const char *name, uint32_t standard, uint32_t most, uint32_t *out,
                      struct error *e) MUST_CHECK;
enum status get_flag(json_t *in, const char *name, bool *out, struct error *e) MUST_CHECK;
/* Does "store" name the store `default` before its first Create? */
bool is_unset_default(const struct request *r, json_t *in);
/* "store" is an id or a name. */
enum status get_store(struct request *r, json_t *in, struct store **out, struct error *e) MUST_CHECK;

/* ---- methods: op_json.c, op_keys.c, op_push.c, op_init.c, op_pull.c, op_wait.c, op_states.c, op_plane.c ---- */

typedef void method_json(struct request *r, json_t *in);
typedef void method_data(struct request *r, const struct incoming *in);
#define METHOD_DECLARE(number, name, kind, flags) method_##kind method_##name;
WIRE_METHODS(METHOD_DECLARE)
#undef METHOD_DECLARE

/* The head of an Init, Push or Set with one entry: decides, and lends memory for its body. */
enum placement data_place(struct peer *p, const struct incoming *in, void **at);
/* A named request of values in parts that was answered before is answered the same again. */
bool set_answered_before(struct request *r);
/* The answer of a wait that has been decided. */
void wait_answer(struct wait *w);

/* Answers KeyStats: of one key, or of names, which are checked by then to be a list of a bounded number. */
void key_stats_look(struct request *r, struct store *s, json_t *names, bool one);

json_t *key_name_json(const struct key_name *n);
enum status key_name_from_json(const json_t *v, struct key_name *out, struct error *e) MUST_CHECK;
json_t *server_info_json(const struct server *s);

#endif
