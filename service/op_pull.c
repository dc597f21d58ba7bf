/* Pull: the newest versions, or the rest of one that was begun. */
#include "service/op_data.h"

#include "service/base/mem.h"

#include <inttypes.h>

struct pull {
    struct request *request;
    struct store *store;
    struct worker *worker;                   /* held; NULL: has not joined */
    uint32_t count;
    uint32_t pending;                        /* copies of the device, and the one who builds */
    bool to_mailbox;                         /* the bytes go there, not into the answer */
    bool copies;                             /* nothing in the answer refers to a version */
    struct job job;                          /* begins the entries from `begun` on */
    uint32_t begun;
    struct box *box;                         /* held; NULL: the client has none */
    struct error failed;                     /* its reason is not NONE: the whole has failed */
    struct pulled {
        struct task task;
        struct pull *pull;
        struct wire_pull_entry entry;
        struct wire_place place;             /* in the mailbox */
        struct version *version;             /* held; NULL: a fault or nothing newer */
        struct key *key;                     /* held; NULL: a fault */
        struct error *error;                 /* owned */
    } entries[];
};

static void pull_free(struct pull *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        version_drop(p->entries[i].version);
        key_drop(p->entries[i].key);
        mem_free(p->entries[i].error);
    }
    worker_drop(p->worker);
    box_drop(p->box);
    request_free(p->request);
    mem_free(p);
}

/* What fits beside what is there already, in whole elements. */
static uint64_t room(const struct answer *a, uint32_t count)
{
    size_t head = WIRE_HEADER_SIZE + 256 + (size_t)count * (wire_pull_result_size + wire_fault_size) + KIB(32);
    uint64_t used = head + a->body_size + WIRE_ALIGN;

    return used < FRAME_SIZE_MAX ? (FRAME_SIZE_MAX - used) / 8 * 8 : 0;
}

static uint64_t wanted_size(const struct pulled *x)
{
    uint64_t rest = x->key->shape.size - x->entry.offset;

    return x->entry.size > 0 && x->entry.size < rest ? x->entry.size : rest;
}

static void put_bytes(const struct pull *p, struct version *v, struct answer *a, struct wire_pull_result *f)
{
    if (f->size > room(a, p->count)) f->size = room(a, p->count);
    core_spend(p->store->core, f->size / WORK_BYTES);
    if (p->copies || f->size <= SMALL_VALUE_SIZE) answer_copy(a, (const uint8_t *)v->host + f->offset, f->size);
    else answer_refer(a, v, f->offset, f->size);
}

static void pull_bytes(struct pull *p, struct pulled *x, struct answer *a, struct wire_pull_result *f)
{
    struct session *session = p->request->session;
    struct version *v = x->version;

    f->version = v->number;
    f->offset = x->entry.offset;
    f->size = wanted_size(x);
    if (p->to_mailbox) f->flags = RESULT_IN_MAILBOX;
    else put_bytes(p, v, a, f);
    struct progress *at = p->worker != NULL && p->worker->store == p->store ? worker_progress(p->worker, x->key, NULL)
                                                                            : NULL;
    if (at != NULL && v->number > at->pulled) at->pulled = v->number;
    /* Last: with the last part it lets the version go. */
    if (f->size < f->total && !v->revoked) session_pin(session, v, f->size, f->total);
}

/* Whether entry i goes into a later answer. One that does not fit in one piece may be first only. */
static bool is_too_much(const struct pull *p, uint32_t i, const struct pulled *x, const struct answer *a)
{
    size_t head = a->desc.size + a->faults.size + wire_pull_result_size + wire_fault_size;

    if (head > FRAME_HEAD_MAX - KIB(1)) return true;
    if (i == 0 || x->version == NULL || x->error != NULL || p->to_mailbox) return false;
    uint64_t want = wanted_size(x);
    return room(a, p->count) < (x->entry.offset == 0 || want < 8 ? want : 8);
}

/* false: it goes into a later answer. */
static bool pull_put(struct pull *p, uint32_t i, struct pulled *x, struct answer *a)
{
    struct wire_pull_result f = {.key = x->entry.key};

    if (is_too_much(p, i, x, a)) return false;
    if (x->error != NULL) {
        answer_fault(a, i, x->error);
    } else {
        f.dtype = (uint8_t)x->key->shape.dtype;
        f.total = x->key->shape.size;
        f.version = key_version(x->key);
        if (x->version != NULL) pull_bytes(p, x, a, &f);
    }
    wire_put_pull_result(&a->desc, &f);
    return true;
}

/* The answer holds as many entries as fit; one that does not fit at all ends it. */
static uint32_t pull_fill(struct pull *p, struct answer *a)
{
    uint32_t i = 0;

    while (i < p->count && pull_put(p, i, &p->entries[i], a)) i++;
    return i;
}

static void pull_fault(struct pulled *x, const struct error *e)
{
    x->error = mem_new(sizeof *e);
    if (x->error != NULL) *x->error = *e;
    else error_retry(&x->pull->failed, REASON_NO_MEMORY, RETRY_MS, "no memory for a pull");
}

static void pull_send(struct pull *p, uint32_t count, struct answer *a)
{
    struct wire_pull_done f = {.count = count, .faults = a->fault_count};

    wire_put_pull_done(&a->fixed, &f);
    p->request->server->core.counters.pulls += count;
    answer_send(p->request, a);
}

static void pull_answer(struct pull *p)
{
    struct answer a = {0};
    struct error e;

    for (uint32_t i = 0; i < p->count; i++) {
        struct pulled *x = &p->entries[i];
        if (x->version == NULL || !x->version->revoked || p->to_mailbox) continue;
        error_retry(&e, REASON_VERSION_REVOKED, 1, "version %" PRIu64 " was taken back while others were copied; begin "
                    "again with the newest", x->version->number);
        pull_fault(x, &e);
    }
    if (p->failed.reason != REASON_NONE) {
        answer_error(p->request, &p->failed);
    } else {
        uint32_t count = pull_fill(p, &a);
        pull_send(p, count, &a);
    }
    pull_free(p);
}

static void pull_pass(struct pull *p)
{
    if (--p->pending == 0) pull_answer(p);
}

static void fetched(struct task *t, enum status s)
{
    struct pulled *x = CONTAINER_OF(t, struct pulled, task);

    if (s == STATUS_OK) version_fetched(x->version);
    else if (s == reason_status(REASON_NO_MEMORY))
        error_retry(&x->pull->failed, REASON_NO_MEMORY, RETRY_MS, "no memory to copy a value from the device");
    else
        core_why(x->pull->store->core, "a value was copied from it", &x->pull->failed);
    pull_pass(x->pull);
}

/* Finds key and version, and holds neither. */
static enum status pull_look(const struct pull *p, struct pulled *x, struct error *e)
{
    struct key *k = store_key_at(p->store, x->entry.key);
    struct version *v;
    char name[KEY_PRINT_SIZE];

    if (k == NULL)
        return error_set(e, REASON_NO_KEY, "there is no key with id %" PRIu64 " in store '%s'; it may have been deleted "
                         "or replaced", x->entry.key, p->store->name);
    if (x->entry.offset > k->shape.size)
        return error_set(e, REASON_BAD_ARGUMENT, "offset %" PRIu64 " of a value of %" PRIu64 " bytes", x->entry.offset,
                         k->shape.size);
    v = x->entry.version > 0 ? version_find(k, x->entry.version) : k->current;
    if (v == NULL)
        return error_retry(e, REASON_VERSION_REVOKED, 1, "version %" PRIu64 " of %s is no longer held; begin again with "
                           "the newest", x->entry.version, key_name_print(&k->name, name));
    x->key = k;
    if (x->entry.newer == 0 || v->number > x->entry.newer) x->version = v;
    return STATUS_OK;
}

static enum status pull_find(struct pull *p, struct pulled *x, struct error *e)
{
    enum status st = pull_look(p, x, e);

    if (x->key != NULL) key_hold(x->key);
    if (x->version != NULL) version_hold(x->version);
    return st;
}

static enum status pull_read(struct request *r, const struct incoming *in, struct pull **out, struct error *e)
{
    struct reader fixed = reader_of(in->fixed), desc = reader_of(in->desc), places = {0};
    bool to_mailbox = in->header.flags & WIRE_FLAG_MAILBOX;
    struct wire_pull f;
    struct store *s = NULL;
    struct pull *p = NULL;
    enum status st = wire_get_pull(&fixed, &f) ? STATUS_OK : error_set(e, REASON_MALFORMED, "fixed fields of Pull");

    if (st == STATUS_OK) st = data_check_count(f.count, in->desc, wire_pull_entry_size, e);
    if (st == STATUS_OK) st = data_find_store(r->server, f.store, &s, e);
    if (st == STATUS_OK && to_mailbox) st = box_places(in, f.count, &places, e);
    if (st != STATUS_OK) return st;
    p = mem_zero(sizeof *p + f.count * sizeof p->entries[0]);
    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a pull");
    p->request = request_keep(r);
    p->store = s;
    p->count = f.count;
    p->to_mailbox = to_mailbox;
    if (to_mailbox && r->session->box != NULL) p->box = box_hold(r->session->box);
    if (session_worker(r->session, s, &p->worker, NULL) == STATUS_OK) worker_hold(p->worker);
    if (p->request == NULL) {
        pull_free(p);
        return error_set(e, REASON_NO_MEMORY, "no memory for a pull");
    }
    for (uint32_t i = 0; i < p->count; i++) {
        p->entries[i].pull = p;
        if (!wire_get_pull_entry(&desc, &p->entries[i].entry)) p->count = i;
        else if (to_mailbox) wire_get_place(&places, &p->entries[i].place);
    }
    *out = p;
    return STATUS_OK;
}

/* Where the CPU reaches every version: entry by entry from the values into the answer, which keeps nothing else. What takes
 * several turns copies all values: a version that the answer referred to might lose its memory between two of them. */
struct pulling {
    struct frame_job frame;
    struct answer answer;
    struct reader desc;
    uint32_t store, count, next;
};

static struct pulling *pulling_of(struct frame_job *f) { return CONTAINER_OF(f, struct pulling, frame); }

static void pulling_drop(struct frame_job *f) { answer_fini(&pulling_of(f)->answer); }

static void pull_slowly(struct request *r, const struct incoming *in);

static bool pull_piece(struct frame_job *f)
{
    struct pulling *g = pulling_of(f);
    struct pull p = {.request = &f->request, .count = g->count, .copies = g->count > TURN_WORK};
    struct error e;
    uint32_t from = g->next;

    if (data_find_store(f->request.server, g->store, &p.store, &e) != STATUS_OK) {
        answer_fini(&g->answer);
        answer_error(&f->request, &e);
        return true;
    }
    if (session_worker(f->request.session, p.store, &p.worker, NULL) != STATUS_OK) p.worker = NULL;
    for (; g->next < p.count; g->next++) {
        struct pulled x = {.pull = &p};
        if (p.copies && g->next > from && frame_is_spent(f)) return false;
        data_look_ahead(p.store, &g->desc, wire_pull_entry_size);
        if (!wire_get_pull_entry(&g->desc, &x.entry)) break;
        if (pull_look(&p, &x, &e) != STATUS_OK) x.error = &e;
        if (x.version != NULL && x.version->host == NULL) { /* the device's own: all from the start */
            answer_fini(&g->answer);
            pull_slowly(&f->request, &f->in);
            return true;
        }
        if (!pull_put(&p, g->next, &x, &g->answer)) break;
        core_spend(p.store->core, 1);
    }
    pull_send(&p, g->next, &g->answer);
    return true;
}

static void delivered(struct task *t, enum status s)
{
    struct pull *p = CONTAINER_OF(t, struct pulled, task)->pull;

    if (s != STATUS_OK) core_why(p->store->core, "a value was copied to a mailbox", &p->failed);
    pull_pass(p);
}

/* In the order of the key's queue: the step that will write this buffer again comes after it, whoever takes the
 * version. */
static enum status deliver(struct pull *p, struct pulled *x, struct error *e)
{
    struct key *k = x->key;
    void *to;
    enum status st = box_at(p->request->session, &x->place, wanted_size(x), &to, e);

    if (st != STATUS_OK) return st;
    st = device_download(k->queue, to, x->version->mem, (size_t)x->entry.offset, (size_t)wanted_size(x));
    if (st != STATUS_OK) {
        *e = *device_error(k->core->device);
        return st;
    }
    x->task.run = delivered;
    p->pending++;
    core_after(k->core, k->queue_index, &x->task);
    return STATUS_OK;
}

static enum status pull_begin(struct pull *p, struct pulled *x, struct error *e)
{
    enum status st = pull_find(p, x, e);

    if (st != STATUS_OK || x->version == NULL) return st;
    if (p->to_mailbox) return deliver(p, x, e);
    if (x->version->host != NULL) return STATUS_OK;
    x->task.run = fetched;
    p->pending++;
    version_fetch(x->version, &x->task);
    return STATUS_OK;
}

static bool pull_begin_some(struct job *j)
{
    struct pull *p = CONTAINER_OF(j, struct pull, job);
    struct core *c = &p->request->server->core;
    struct error e;

    for (; p->begun < p->count; p->begun++) {
        struct pulled *x = &p->entries[p->begun];
        if (core_is_spent(c) && p->begun > 0) return false;
        if (pull_begin(p, x, &e) != STATUS_OK) pull_fault(x, &e);
        core_spend(c, 1);
    }
    pull_pass(p);
    return true;
}

static void pull_slowly(struct request *r, const struct incoming *in)
{
    struct pull *p = NULL;
    struct error e;

    if (pull_read(r, in, &p, &e) != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    p->pending = 1;
    p->job.run = pull_begin_some;
    request_begin(p->request, &p->job);
}

void method_Pull(struct request *r, const struct incoming *in)
{
    struct reader fixed = reader_of(in->fixed);
    struct pulling g = {.frame = {.request = *r, .in = *in, .run = pull_piece, .drop = pulling_drop},
                        .desc = reader_of(in->desc)};
    struct wire_pull f;

    if ((in->header.flags & WIRE_FLAG_MAILBOX) || !wire_get_pull(&fixed, &f) ||
        data_check_count(f.count, in->desc, wire_pull_entry_size, NULL) != STATUS_OK) {
        pull_slowly(r, in);
        return;
    }
    g.store = f.store;
    g.count = f.count;
    frame_begin(&g.frame, sizeof g);
}
