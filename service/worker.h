/* A worker as one store knows it: a client's id and epoch, a rank, and how far it is on each key. */
#ifndef SERVICE_WORKER_H
#define SERVICE_WORKER_H

#include "api/wire.h"
#include "service/core.h"

struct store;
struct key;
struct share;

/* Pages, so that one more key never moves what is known of a million others. */
enum { PROGRESS_PAGE = 256 };

enum worker_state { WORKER_MEMBER, WORKER_LEFT, WORKER_DEAD };

/* How far a worker is on one key. */
struct progress {
    uint64_t key;                /* id; another one: nothing known */
    uint64_t recorded;           /* highest step recorded */
    uint64_t pending;            /* bit i: step recorded - i is neither applied nor failed: rounds may end out of order */
    uint64_t next;               /* step expected next; 0: to be found when asked for */
    uint64_t applied;            /* highest step applied */
    uint64_t applied_version;    /* and the version it made */
    uint64_t failed;             /* bit i: step applied - i has failed; outlives the notes, which are few */
    enum reason failed_reason;   /* of the last that did */
    uint32_t start;              /* of the worker's, in which `next` and `init_call` were told */
    uint64_t pulled;             /* version last pulled */
    uint64_t init_call;          /* the call that initialised it; 0: none */
};

/* A contribution or barrier of which the worker has yet to hear that it failed. */
struct note {
    uint64_t key;                /* id; 0: a barrier */
    uint64_t number;             /* step or ticket */
    enum status status;
    enum reason reason;
    char *text;
};

struct worker {
    struct store *store;         /* NULL: its job is over */
    uint32_t slot;               /* in store->workers */
    uint32_t rank;
    struct wire_id id;
    uint32_t epoch;
    char *name;                  /* for people */
    enum worker_state state;
    uint64_t seen_ms;            /* last sign of life */
    uint64_t stamp;              /* of its join: rounds opened later need it. 0 for who joined before the job had
                                  * started: all of its rounds */
    uint32_t start;              /* how often it has started anew */
    struct progress **progress;  /* by key slot, in pages of PROGRESS_PAGE; NULL: nothing known of these keys */
    size_t progress_pages;
    struct note notes[NOTES_MAX];    /* the newest; older ones are forgotten and counted */
    size_t note_count;
    uint64_t notes_lost;
    struct list stagings;        /* incomplete */
    uint32_t staging_count;
    struct share *share;         /* held; of the client that it is at present; NULL before it has joined */
    unsigned holds;
};

struct worker *worker_hold(struct worker *w);
void worker_drop(struct worker *w);

/* The entry for this key, made on first use. NULL: no memory, or the key is deleted and had none. */
struct progress *worker_progress(struct worker *w, const struct key *k, struct error *e);
/* The entry if there is one. */
const struct progress *worker_seen(const struct worker *w, const struct key *k);
/* A new start of the worker: what it was told of next steps and has initialised is void, for every key. */
void worker_begin_anew(struct worker *w);
/* The step that the worker's next push of k has. */
uint64_t worker_next_step(const struct worker *w, const struct key *k);
/* The same, to be told to the worker: from now on it is held to it, whatever happens to rounds meanwhile. */
uint64_t worker_tell_step(struct worker *w, const struct key *k);

/* Step `step` is recorded; and taken back, since it was refused after all. */
void worker_recorded(struct progress *p, uint64_t step);
void worker_unrecorded(struct progress *p, const struct progress *before);
/* Step `step` of k has been applied and made `version`; or (why) has failed, which the worker is told when it asks. */
void worker_applied(struct worker *w, const struct key *k, uint64_t step, uint64_t version, const struct error *why);
bool worker_failed(const struct progress *p, uint64_t step);
bool worker_pending(const struct progress *p, uint64_t step);
void worker_note(struct worker *w, uint64_t key, uint64_t number, const struct error *e);
/* The note, or NULL. */
const struct note *worker_note_find(const struct worker *w, uint64_t key, uint64_t number);
/* "worker 'w2' (rank 2)" */
enum { WORKER_PRINT_SIZE = 200 };
const char *worker_print(const struct worker *w, char out[WORKER_PRINT_SIZE]);

#endif
