/* The methods that carry tensor bytes, and Wait.
 *
 * A frame with one entry is decided in data_place, before its bytes are taken, and they go straight to staging memory;
 * a frame with many small ones lands in the connection's scratch and is decided entry by entry. Both ways meet in
 * land(). */
#include "service/op.h"

#include "service/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

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
    uint64_t call;
    enum on_reinit on_reinit;
    bool force;
};

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static enum status find_store(struct server *s, uint32_t id, struct store **out, struct error *e)
{
    *out = store_at(&s->core, id);
    return *out != NULL ? STATUS_OK
                        : error_set(e, REASON_NO_STORE, "there is no store with id %u; it may have been deleted", id);
}

static enum status check_count(uint32_t count, struct bytes desc, size_t size, struct error *e)
{
    if (count > ENTRIES_MAX || (uint64_t)count * size > desc.size)
        return error_set(e, REASON_MALFORMED, "%u entries in descriptors of %zu bytes; at most %d", count, desc.size,
                         ENTRIES_MAX);
    return STATUS_OK;
}

static enum status read_init(const struct incoming *in, struct batch *b, uint32_t *store, struct error *e)
{
    struct reader r = reader_of(in->fixed);
    struct wire_init f;

    if (!wire_get_init(&r, &f) || f.on_reinit > REINIT_KEEP)
        return error_set(e, REASON_MALFORMED, "fixed fields of Init: %zu bytes, on_reinit %u", in->fixed.size,
                         f.on_reinit);
    *store = f.store;
    b->count = f.count;
    b->call = f.call;
    b->on_reinit = (enum on_reinit)f.on_reinit;
    return check_count(f.count, in->desc, wire_init_entry_size, e);
}

static enum status read_push(const struct incoming *in, struct batch *b, uint32_t *store, struct error *e)
{
    struct reader r = reader_of(in->fixed);
    struct wire_push f;

    if (!wire_get_push(&r, &f))
        return error_set(e, REASON_MALFORMED, "fixed fields: %zu bytes, not %d", in->fixed.size, wire_push_size);
    *store = f.store;
    b->count = f.count;
    b->force = f.force != 0;
    return check_count(f.count, in->desc, wire_push_entry_size, e);
}

static enum status batch_read(struct peer *p, const struct incoming *in, struct batch *b, struct error *e)
{
    uint32_t store = 0;
    enum status st;

    *b = (struct batch){.entries = reader_of(in->desc)};
    switch (in->header.method) {
    case WIRE_Init: b->kind = STAGING_INIT; break;
    case WIRE_Set: b->kind = STAGING_SET; break;
    default: b->kind = STAGING_PUSH; break;
    }
    st = b->kind == STAGING_INIT ? read_init(in, b, &store, e) : read_push(in, b, &store, e);
    if (st == STATUS_OK) st = find_store(p->server, store, &b->store, e);
    if (st != STATUS_OK) return st;
    if (p->server->draining)
        return error_set(e, REASON_DRAINING, "the daemon is shutting down; nothing new is taken");
    st = session_worker(p->session, b->store, &b->worker, e);
    bool outside = st != STATUS_OK && e->reason == REASON_NOT_JOINED && (b->kind == STAGING_SET || (b->kind == STAGING_INIT && p->ops->admin));
    b->lowest = b->kind == STAGING_INIT && (outside || (st == STATUS_OK && store_lowest(b->store) == b->worker));
    return outside ? STATUS_OK : st;
}

static enum status read_init_entry(struct batch *b, struct entry *x, struct error *e)
{
    const uint8_t *start = b->entries.at;
    struct wire_init_entry *i = &x->init;
    uint64_t size = 0;

    if (!wire_get_init_entry(&b->entries, i) || i->ndim > DIMS_MAX || !dtype_known(i->dtype) || i->key_type > KEY_STR ||
        i->storage != STORAGE_DENSE) {
        b->entries.failed = true; /* where the next one begins is not known */
        return error_set(e, REASON_MALFORMED, "an entry of Init: dtype %u, %u dimensions, key type %u, storage %u",
                         i->dtype, i->ndim, i->key_type, i->storage);
    }
    x->shape = (struct key_shape){.dtype = (enum dtype)i->dtype, .ndim = i->ndim};
    for (unsigned d = 0; d < i->ndim; d++) {
        struct { const uint8_t *at; } dim = {reader_take(&b->entries, sizeof(int64_t))};
        uint64_t v = 0;
        for (unsigned k = 0; dim.at != NULL && k < 8; k++) v |= (uint64_t)dim.at[k] << (8 * k);
        x->shape.dims[d] = (int64_t)v;
    }
    x->name = (struct key_name){.is_text = i->key_type == KEY_STR, .number = i->number};
    x->name.text = bytes_of(reader_take(&b->entries, i->name_size), i->name_size);
    reader_pad(&b->entries, start, 8);
    if (b->entries.failed) return error_set(e, REASON_MALFORMED, "an entry of Init is cut off");
    x->offset = i->offset;
    x->size = i->size;
    x->total = i->total;
    if (!wire_shape_size(x->shape.dims, i->ndim, dtype_size(x->shape.dtype), &x->shape.count, &size))
        return error_set(e, REASON_TOO_LARGE, "a shape with negative dimensions or more than %llu bytes",
                         (unsigned long long)VALUE_SIZE_MAX);
    x->shape.size = size;
    return STATUS_OK;
}

static enum status entry_read(struct batch *b, struct entry *x, struct error *e)
{
    *x = (struct entry){.size = 0};
    if (b->kind == STAGING_INIT) return read_init_entry(b, x, e);
    if (!wire_get_push_entry(&b->entries, &x->push)) return error_set(e, REASON_MALFORMED, "an entry is cut off");
    x->offset = x->push.offset;
    x->size = x->push.size;
    x->total = x->push.total;
    if (x->push.codec != CODEC_NONE || x->push.flags != 0)
        return error_set(e, REASON_UNIMPLEMENTED, "codec %u and flags %u are not available in this version",
                         x->push.codec, x->push.flags);
    return STATUS_OK;
}

/* ---- deciding --------------------------------------------------------------------------------------------------- */

static enum status check_extent(const struct entry *x, uint64_t whole, struct error *e)
{
    if (x->total != whole || x->offset > whole || x->size > whole - x->offset)
        return error_set(e, REASON_SHAPE_MISMATCH, "bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64 "; the value has %"
                         PRIu64, x->offset, x->offset + x->size, x->total, whole);
    return STATUS_OK;
}

static enum status check_type(const struct key *k, const struct entry *x, struct error *e)
{
    char shape[SHAPE_PRINT_SIZE], name[KEY_PRINT_SIZE];

    if (x->push.dtype != k->shape.dtype)
        return error_set(e, REASON_SHAPE_MISMATCH, "%s is %s, the value sent is %s", key_name_print(&k->name, name),
                         shape_print(&k->shape, shape), dtype_known(x->push.dtype)
                         ? dtype_numpy((enum dtype)x->push.dtype) : "of an unknown type");
    return check_extent(x, k->shape.size, e);
}

static enum status find_key(const struct batch *b, uint64_t id, struct key **out, struct error *e)
{
    *out = store_key_at(b->store, id);
    return *out != NULL ? STATUS_OK
                        : error_set(e, REASON_NO_KEY, "there is no key with id %" PRIu64 " in store '%s'; it may have "
                                    "been deleted or replaced", id, b->store->name);
}

/* The incomplete push of this step, if it is this one. A push that its sender gave up half way leaves a staging whose
 * step the next push bears again: the newer name takes the place of the older, so that their bytes never mix. */
static enum status find_push(struct worker *w, const struct key *k, uint64_t step, uint64_t sequence,
                             struct staging **out, struct error *e)
{
    struct staging *s = staging_find(w, STAGING_PUSH, k, step);

    *out = s;
    if (s == NULL || s->sequence == sequence) return STATUS_OK;
    if (sequence < s->sequence)
        return error_set(e, REASON_CANCELLED, "push %" PRIu64 " was begun anew; this part of the earlier one is void",
                         step);
    *out = NULL;
    staging_free(s);
    return STATUS_OK;
}

static enum status open_push(struct batch *b, const struct entry *x, uint64_t sequence, struct staging **out,
                             bool *repeat, struct error *e)
{
    struct core *c = b->store->core;
    struct key *k;
    bool late;
    enum status st = find_key(b, x->push.key, &k, e);

    if (st == STATUS_OK) st = check_type(k, x, e);
    if (st == STATUS_OK) st = find_push(b->worker, k, x->push.step, sequence, out, e);
    if (st != STATUS_OK || *out != NULL) return st;
    st = store_push_check(b->store, k, b->worker, x->push.step, repeat, &late, e);
    if (*repeat) c->counters.pushes_repeated++;
    if (st != STATUS_OK || *repeat) return st;
    bool advances = k->rounds[0] != NULL && k->rounds[0]->step == x->push.step;
    st = staging_new(c, STAGING_PUSH, k, b->worker, x->push.step, k->shape.size, advances, out, e);
    if (st == STATUS_OK) (*out)->sequence = sequence;
    return st;
}

static enum status check_set(const struct batch *b, const struct key *k, struct error *e)
{
    char name[KEY_PRINT_SIZE];

    if (b->force || k->rounds[0] == NULL) return STATUS_OK;
    return error_set(e, REASON_ROUND_OPEN, "round %" PRIu64 " of %s is open; wait for it, or force",
                     k->rounds[0]->step, key_name_print(&k->name, name));
}

static enum status open_set(struct batch *b, const struct entry *x, uint64_t sequence, struct staging **out,
                            struct error *e)
{
    struct key *k;
    enum status st = find_key(b, x->push.key, &k, e);

    if (st == STATUS_OK) st = check_type(k, x, e);
    if (st == STATUS_OK) st = check_set(b, k, e);
    if (st == STATUS_OK && (x->size < x->total) && b->worker == NULL)
        st = error_set(e, REASON_NOT_JOINED, "a value in parts can only be set by a worker of the store; join it first");
    if (st != STATUS_OK) return st;
    *out = b->worker != NULL ? staging_find(b->worker, STAGING_SET, k, sequence) : NULL;
    if (*out != NULL) return STATUS_OK;
    return staging_new(b->store->core, STAGING_SET, k, b->worker, sequence, k->shape.size, false, out, e);
}

/* Was k made, or taken over, by this very call? */
static bool init_was_this(const struct batch *b, const struct key *k)
{
    if (b->worker == NULL) return k->made_by == b->call;
    const struct progress *p = worker_seen(b->worker, k);
    return k->job == b->store->job && p != NULL && p->init_call == b->call;
}

/* What becomes of an init of this key by this worker? REFUSED comes with an error. */
static enum init_outcome init_decide(struct batch *b, const struct entry *x, struct key **out, struct error *e)
{
    struct key *k = store_key_find(b->store, &x->name);
    bool again = false;
    char name[KEY_PRINT_SIZE], want[SHAPE_PRINT_SIZE], have[SHAPE_PRINT_SIZE];

    *out = k;
    if (store_key_check(b->store, &x->name, e) != STATUS_OK) return INIT_REFUSED;
    if (k == NULL) return b->lowest ? INIT_NEED_VALUE : INIT_WAIT;
    const struct progress *p = b->worker != NULL ? worker_seen(b->worker, k) : NULL;
    bool this_job = k->job == b->store->job;
    if (init_was_this(b, k)) return INIT_EXISTED;
    again = !this_job || b->worker == NULL || (p != NULL && p->init_call != 0);
    if (again && b->on_reinit == REINIT_REPLACE) return b->lowest || this_job ? INIT_NEED_VALUE : INIT_WAIT;
    if (again && b->on_reinit == REINIT_ERROR) {
        error_set(e, REASON_KEY_EXISTS, "duplicate init of %s: %s; pass on_reinit='replace' to begin anew or 'keep' to "
                  "go on with the value that is there", key_name_print(&x->name, name),
                  b->worker == NULL ? "it is there" : this_job ? "this worker has initialised it"
                                                               : "an earlier job left it");
        return INIT_REFUSED;
    }
    if (!shape_equal(&k->shape, &x->shape)) {
        error_set(e, REASON_SHAPE_MISMATCH, "%s is %s, not %s", key_name_print(&x->name, name),
                  shape_print(&k->shape, have), shape_print(&x->shape, want));
        return INIT_REFUSED;
    }
    return INIT_EXISTED;
}

static enum status check_new(const struct batch *b, const struct entry *x, struct error *e)
{
    return updater_fits(store_updater(b->store), x->shape.dtype, e);
}

static bool is_init_of(const struct staging *s, const struct batch *b, const struct entry *x)
{
    /* The parts of one value agree on what it is. */
    return s->kind == STAGING_INIT && s->worker == b->worker && s->tag == b->call &&
           key_name_equal(&s->init->name, &x->name) && shape_equal(&s->init->shape, &x->shape);
}

static struct staging *find_init(struct batch *b, const struct entry *x)
{
    if (b->worker == NULL) {
        LIST_EACH(struct staging, s, node, &b->store->core->stagings)
            if (is_init_of(s, b, x)) return s;
        return NULL;
    }
    LIST_EACH(struct staging, s, of_worker, &b->worker->stagings)
        if (is_init_of(s, b, x)) return s;
    return NULL;
}

static struct init_wanted *wanted_new(const struct entry *x)
{
    struct init_wanted *w = mem_new(sizeof *w + x->name.text.size);

    if (w == NULL) return NULL;
    *w = (struct init_wanted){.name = x->name, .shape = x->shape};
    if (x->name.text.size > 0) memcpy(w + 1, x->name.text.at, x->name.text.size);
    w->name.text.at = w + 1;
    return w;
}

static enum status open_init(struct batch *b, const struct entry *x, struct staging **out, bool *repeat,
                             struct error *e)
{
    struct init_wanted *w;
    struct key *k;
    enum status st = check_extent(x, x->shape.size, e);

    if (st == STATUS_OK) st = check_new(b, x, e);
    if (st != STATUS_OK) return st;
    switch (init_decide(b, x, &k, e)) {
    case INIT_REFUSED: return e->status;
    case INIT_NEED_VALUE: break;
    default: *repeat = true; return STATUS_OK; /* the outcome is read again when the frame is whole */
    }
    *out = find_init(b, x);
    if (*out != NULL) return STATUS_OK;
    st = core_mem_check(b->store->core, key_needs(b->store, &x->shape), e); /* before its bytes are taken */
    if (st != STATUS_OK) return st;
    w = wanted_new(x);
    if (w == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for an init");
    st = staging_new(b->store->core, STAGING_INIT, NULL, b->worker, b->call, x->shape.size, false, out, e);
    if (st == STATUS_OK) (*out)->init = w;
    else mem_free(w);
    return st;
}

static enum status entry_open(struct batch *b, const struct entry *x, uint64_t sequence, struct staging **out,
                              bool *repeat, struct error *e)
{
    *out = NULL;
    *repeat = false;
    switch (b->kind) {
    case STAGING_PUSH: return open_push(b, x, sequence, out, repeat, e);
    case STAGING_SET: return open_set(b, x, sequence, out, e);
    case STAGING_INIT: break;
    }
    return open_init(b, x, out, repeat, e);
}

/* ---- before the bytes ------------------------------------------------------------------------------------------- */

static enum placement place_failed(struct peer *p, enum status st)
{
    p->placed.failed = st != STATUS_OK;
    return PLACE_DROP;
}

enum placement data_place(struct peer *p, const struct incoming *in, void **at)
{
    struct placed *d = &p->placed;
    struct staging *s;
    struct batch b;
    struct entry x;
    enum status st = batch_read(p, in, &b, &d->error);

    if (st != STATUS_OK || b.count != 1) {
        d->decided = st != STATUS_OK;
        return st != STATUS_OK ? place_failed(p, st) : PLACE_SCRATCH;
    }
    d->decided = true;
    if (in->header.flags & WIRE_FLAG_CHECK) return PLACE_DROP; /* a check has no values */
    if (b.kind == STAGING_SET && session_known(p->session, in->header.sequence)) return PLACE_DROP;
    st = entry_read(&b, &x, &d->error);
    if (st == STATUS_OK && x.size != in->header.body_size)
        st = error_set(&d->error, REASON_MALFORMED, "an entry of %" PRIu64 " bytes in a body of %" PRIu64, x.size,
                       in->header.body_size);
    if (st == STATUS_OK) st = entry_open(&b, &x, in->header.sequence, &s, &d->repeat, &d->error);
    if (st != STATUS_OK || d->repeat) return place_failed(p, st);
    *at = staging_land(s, &d->landing, x.offset, x.size);
    return PLACE_AT;
}

/* ---- when the bytes are there ----------------------------------------------------------------------------------- */

/* One Set request: answered when all its values are applied. */
struct set {
    struct request *request;
    uint32_t pending;
    uint32_t count;
    uint64_t version;
    bool failed;
    struct error error;
};

struct set_update {
    struct update update;
    struct set *set;
};

static void set_end(struct set *s)
{
    struct wire_set_done f = {.count = s->count, .version = s->version};
    struct answer a = {0};

    if (--s->pending > 0) return;
    if (s->failed) {
        answer_error(s->request, &s->error);
    } else {
        wire_put_set_done(&a.fixed, &f);
        if (s->request->header.sequence > 0 && !a.fixed.failed)
            session_result(s->request->session, s->request->header.sequence, a.fixed.at, a.fixed.size);
        answer_send(s->request, &a);
    }
    request_free(s->request);
    mem_free(s);
}

static void set_done(struct update *u, const struct error *e)
{
    struct set_update *x = CONTAINER_OF(u, struct set_update, update);

    if (e != NULL) {
        x->set->failed = true;
        x->set->error = *e;
    } else {
        x->set->version = key_version(u->key);
    }
    set_end(x->set);
    key_drop(u->key);
    mem_free(x);
}

static enum status complete_set(struct batch *b, struct staging *st, struct set *set, struct error *e)
{
    struct key *k = st->key;
    struct set_update *x = NULL;
    struct error why;
    enum status status = check_set(b, k, e); /* a round may have opened while the value came */

    if (status == STATUS_OK) {
        x = mem_zero(sizeof *x);
        if (x == NULL) status = error_set(e, REASON_NO_MEMORY, "no memory for a set");
    }
    if (status != STATUS_OK) {
        staging_free(st);
        return status;
    }
    error_set(&why, REASON_ROUND_FAILED, "the value was set while the round was open");
    while (k->rounds[0] != NULL) round_fail(k->rounds[0], &why);
    x->set = set;
    set->pending++;
    set->count++;
    x->update = (struct update){.kind = UPDATE_SET, .key = key_hold(k), .updater = updater_hold(k->store->assign),
                                .last = st, .contributors = 1, .done = set_done};
    key_update(&x->update);
    return STATUS_OK;
}

static enum status complete_init(struct batch *b, struct staging *st, struct error *e)
{
    struct init_wanted *w = st->init;
    struct entry x = {.name = w->name, .shape = w->shape};
    struct store *s = b->store;
    struct key *old, *k = NULL;
    enum status status = STATUS_OK;

    /* While the value came the key may have come to be otherwise, or another have become the lowest. */
    enum init_outcome outcome = init_decide(b, &x, &old, e);
    if (outcome == INIT_NEED_VALUE) status = check_new(b, &x, e);
    else if (outcome == INIT_REFUSED) status = e->status;
    if (outcome != INIT_NEED_VALUE || status != STATUS_OK) {
        staging_free(st);
        return status;
    }
    st->init = NULL;
    status = key_new(s, w, st, &k, e);
    if (status != STATUS_OK) goto out;
    if (old != NULL) status = store_key_delete(s, old, true, e);
    if (status == STATUS_OK) status = store_key_add(s, k, e);
    if (status != STATUS_OK) {
        key_drop(k);
        goto out;
    }
    struct progress *p = b->worker != NULL ? worker_progress(b->worker, k, e) : NULL;
    if (p != NULL) p->init_call = b->call;
    if (b->worker == NULL) k->made_by = b->call;
out:
    mem_free(w);
    return status;
}

/* A run of bytes has been written; if the value is whole, it counts from now on. */
static enum status landed(struct batch *b, struct landing *l, struct set *set, bool *complete, struct error *e)
{
    struct staging *s = l->staging;
    enum status st;

    b->store->core->counters.bytes_in += l->size;
    st = staging_landed(l, e);
    *complete = st == STATUS_OK && s->complete;
    if (!*complete) return st;
    switch (b->kind) {
    case STAGING_PUSH: return store_push_record(s, e);
    case STAGING_SET: return complete_set(b, s, set, e);
    case STAGING_INIT: break;
    }
    return complete_init(b, s, e);
}

/* One entry of a frame whose body lies in memory. */
static enum status land(struct batch *b, const struct entry *x, uint64_t sequence, const uint8_t *from,
                        struct set *set, bool *complete, struct error *e)
{
    struct landing l = {.staging = NULL};
    struct staging *s;
    bool repeat;
    enum status st = entry_open(b, x, sequence, &s, &repeat, e);

    *complete = st == STATUS_OK && repeat;
    if (st != STATUS_OK || repeat) return st;
    void *to = staging_land(s, &l, x->offset, x->size);
    if (x->size > 0) memcpy(to, from, (size_t)x->size);
    return landed(b, &l, set, complete, e);
}

/* The entry whose bytes data_place sent to their place. */
static enum status land_placed(struct peer *p, struct batch *b, struct set *set, bool *complete, struct error *e)
{
    struct placed *d = &p->placed;

    if (d->failed) {
        *e = d->error;
        return e->status;
    }
    *complete = d->repeat;
    if (d->repeat) return STATUS_OK;
    if (d->landing.staging == NULL)
        return error_retry(e, REASON_STAGING_FULL, RETRY_MS, "the value was completed or dropped while this part was on "
                           "its way; send it again");
    return landed(b, &d->landing, set, complete, e);
}

/* ---- Push and Set ----------------------------------------------------------------------------------------------- */

/* Calls land for each entry; faults go to the answer. Answers how many are complete. */
static uint32_t land_all(struct request *r, const struct incoming *in, struct batch *b, struct set *set,
                         struct answer *a)
{
    struct peer *p = r->peer;
    uint64_t at = 0, end = in->header.body_size;
    uint32_t complete_count = 0;

    for (uint32_t i = 0; i < b->count; i++) {
        bool complete = false;
        struct entry x;
        struct error e;
        enum status st = entry_read(b, &x, &e);
        at = (at + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN;
        bool inside = x.size == 0 || (at <= end && x.size <= end - at);
        if (st == STATUS_OK && !inside)
            st = error_set(&e, REASON_MALFORMED, "entry %u lies beyond the body's end", i);
        if (st == STATUS_OK) {
            if (p->placed.decided) st = land_placed(p, b, set, &complete, &e);
            else if (in->body == NULL && x.size > 0)
                st = error_retry(&e, REASON_MALFORMED, RETRY_MS, "the body was not taken");
            else st = land(b, &x, r->header.sequence, (const uint8_t *)in->body + at, set, &complete, &e);
        }
        if (st != STATUS_OK) answer_fault(a, i, &e);
        complete_count += complete && st == STATUS_OK;
        if (b->entries.failed) break;
        at = inside ? at + x.size : end + 1; /* nothing that follows such a one has a place */
    }
    return complete_count;
}

void method_Push(struct request *r, const struct incoming *in)
{
    struct answer a = {0};
    struct batch b;
    struct error e;

    if (batch_read(r->peer, in, &b, &e) != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    uint32_t recorded = land_all(r, in, &b, NULL, &a);
    struct wire_push_done f = {.recorded = recorded, .faults = a.fault_count,
                               .window = r->server->core.staging_max / 2};
    wire_put_push_done(&a.fixed, &f);
    answer_send(r, &a);
}

/* Set is named: a repeat is answered again. Parts of one value share the name, so only the request that completes it
 * is remembered; the others are forgotten as soon as they have landed. */
static bool set_answered_before(struct request *r)
{
    const struct named_result *known;
    struct answer a = {0};
    struct error e;

    if (r->header.sequence == 0) return false;
    switch (session_repeat(r->session, &r->header, &known, &e)) {
    case REPEAT_FRESH: return false;
    case REPEAT_DONE:
        buf_add(&a.fixed, known->bytes, known->size);
        answer_send(r, &a);
        break;
    case REPEAT_REFUSED: answer_refusal(r, &e); break;
    }
    return true;
}

void method_Set(struct request *r, const struct incoming *in)
{
    struct set *set = NULL;
    struct answer a = {0};
    struct batch b;
    struct error e;
    enum status st;

    if (set_answered_before(r)) return;
    st = batch_read(r->peer, in, &b, &e);
    if (st == STATUS_OK) {
        set = mem_zero(sizeof *set);
        if (set != NULL) set->request = request_keep(r);
        if (set == NULL || set->request == NULL) st = error_set(&e, REASON_NO_MEMORY, "no memory for a set");
    }
    if (st != STATUS_OK) {
        mem_free(set);
        answer_error(r, &e);
        return;
    }
    set->pending = 1; /* this function's own, so that it is not answered before all entries are seen */
    land_all(r, in, &b, set, &a);
    bool part = set->count == 0 && a.fault_count == 0;
    if (a.fault_count > 0) { /* the first fault speaks for the call */
        struct reader faults = reader_of(bytes_of(a.faults.at, a.faults.size));
        struct wire_fault f;
        set->failed = wire_get_fault(&faults, &f);
        error_retry(&set->error, reason_from_wire(f.reason), f.retry_ms, "%.*s", (int)f.text_size,
                    f.text_size > 0 ? (const char *)a.fault_text.at + f.text_offset : "");
    }
    if (part && r->header.sequence > 0) session_forget(r->session, r->header.sequence);
    answer_fini(&a);
    set_end(set);
}

/* ---- Init ------------------------------------------------------------------------------------------------------- */

static void init_result(struct answer *a, const struct batch *b, const struct entry *x, enum init_outcome outcome)
{
    const struct key *k = store_key_find(b->store, &x->name);
    struct wire_init_result f = {.outcome = outcome};

    if (k != NULL && outcome != INIT_REFUSED) {
        f.key = k->id;
        f.version = key_version(k);
        f.next_step = b->worker != NULL ? worker_tell_step(b->worker, k) : 0;
    }
    wire_put_init_result(&a->desc, &f);
}

/* It is there and the value does not count: the worker has initialised it, and the job has it. */
static enum status adopt(struct batch *b, struct key *k, struct error *e)
{
    if (b->worker == NULL) return STATUS_OK; /* an operator leaves no trace */
    struct progress *p = worker_progress(b->worker, k, e);
    if (p == NULL) return e->status;
    p->init_call = b->call;
    k->job = b->store->job;
    return STATUS_OK;
}

/* First all are looked at; only when none is refused, those that exist are taken over. */
static void init_check(struct request *r, const struct incoming *in, struct batch *b, struct answer *a, bool really)
{
    for (uint32_t i = 0; i < b->count; i++) {
        struct entry x;
        struct key *k;
        struct error e;
        enum init_outcome outcome = INIT_REFUSED;
        if (entry_read(b, &x, &e) == STATUS_OK) outcome = init_decide(b, &x, &k, &e);
        if (outcome == INIT_NEED_VALUE && check_new(b, &x, &e) != STATUS_OK) outcome = INIT_REFUSED;
        if (really && outcome == INIT_EXISTED && adopt(b, k, &e) != STATUS_OK) outcome = INIT_REFUSED;
        if (outcome == INIT_REFUSED) answer_fault(a, i, &e);
        if (b->entries.failed) return;
        init_result(a, b, &x, outcome);
    }
    if (really || a->fault_count > 0) return;
    buf_clear(&a->desc);
    b->entries = reader_of(in->desc);
    init_check(r, in, b, a, true);
}

static void init_values(struct request *r, const struct incoming *in, struct batch *b, struct answer *a)
{
    struct batch again = *b;

    land_all(r, in, b, NULL, a);
    /* The outcomes: who is there now and was initialised by this call is done. */
    for (uint32_t i = 0; i < again.count; i++) {
        enum init_outcome outcome = INIT_REFUSED;
        struct entry x;
        struct key *k;
        struct error e;
        if (entry_read(&again, &x, &e) == STATUS_OK) outcome = init_decide(&again, &x, &k, &e);
        if (again.entries.failed) return;
        if (outcome == INIT_EXISTED && init_was_this(&again, k)) outcome = INIT_CREATED;
        if (outcome == INIT_NEED_VALUE && find_init(&again, &x) != NULL) outcome = INIT_PART;
        init_result(a, &again, &x, outcome);
    }
}

void method_Init(struct request *r, const struct incoming *in)
{
    struct wire_init_done f;
    struct answer a = {0};
    struct batch b;
    struct error e;

    if (batch_read(r->peer, in, &b, &e) != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    if (r->header.flags & WIRE_FLAG_CHECK) init_check(r, in, &b, &a, false);
    else init_values(r, in, &b, &a);
    if (b.entries.failed) {
        error_set(&e, REASON_MALFORMED, "the descriptors of Init end within an entry, or one of them is none");
        answer_fini(&a);
        answer_error(r, &e);
        return;
    }
    f = (struct wire_init_done){.count = b.count, .faults = a.fault_count};
    wire_put_init_done(&a.fixed, &f);
    answer_send(r, &a);
}

/* ---- Pull ------------------------------------------------------------------------------------------------------- */

struct pull {
    struct request *request;
    struct store *store;
    struct worker *worker;                   /* held; NULL: has not joined */
    uint32_t count;
    uint32_t pending;                        /* copies down from the device, and the one who builds */
    struct error failed;                     /* its reason is not NONE: the whole has failed */
    struct pulled {
        struct task task;
        struct pull *pull;
        struct wire_pull_entry entry;
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

static void pull_bytes(struct pull *p, struct pulled *x, struct answer *a, struct wire_pull_result *f)
{
    struct session *session = p->request->session;
    struct version *v = x->version;

    f->version = v->number;
    f->offset = x->entry.offset;
    f->size = wanted_size(x);
    if (f->size > room(a, p->count)) f->size = room(a, p->count);
    if (f->size <= SMALL_VALUE_SIZE) answer_copy(a, (const uint8_t *)v->host + f->offset, f->size);
    else answer_refer(a, v, f->offset, f->size);
    if (f->size < f->total) session_pin(session, v, f->size, f->total);
    struct progress *at = p->worker != NULL && p->worker->store == p->store ? worker_progress(p->worker, x->key, NULL)
                                                                            : NULL;
    if (at != NULL && v->number > at->pulled) at->pulled = v->number;
}

/* Whether entry i goes into a later answer. One that does not fit in one piece may be first only. */
static bool is_too_much(const struct pull *p, uint32_t i, const struct answer *a)
{
    const struct pulled *x = &p->entries[i];
    size_t head = a->desc.size + a->faults.size + wire_pull_result_size + wire_fault_size;

    if (head > FRAME_HEAD_MAX - KIB(1)) return true;
    if (i == 0 || x->version == NULL || x->error != NULL) return false;
    uint64_t want = wanted_size(x);
    return room(a, p->count) < (x->entry.offset == 0 || want < 8 ? want : 8);
}

/* The answer holds as many entries as fit; one that does not fit at all ends it. */
static uint32_t pull_fill(struct pull *p, struct answer *a)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct pulled *x = &p->entries[i];
        struct wire_pull_result f = {.key = x->entry.key};
        if (is_too_much(p, i, a)) return i;
        if (x->error != NULL) {
            answer_fault(a, i, x->error);
        } else {
            f.dtype = (uint8_t)x->key->shape.dtype;
            f.total = x->key->shape.size;
            f.version = key_version(x->key);
            if (x->version != NULL) pull_bytes(p, x, a, &f);
        }
        wire_put_pull_result(&a->desc, &f);
    }
    return p->count;
}

static void pull_fault(struct pulled *x, const struct error *e)
{
    x->error = mem_new(sizeof *e);
    if (x->error != NULL) *x->error = *e;
    else error_retry(&x->pull->failed, REASON_NO_MEMORY, RETRY_MS, "no memory for a pull");
}

static void pull_answer(struct pull *p)
{
    struct wire_pull_done f = {0};
    struct answer a = {0};
    struct error e;

    for (uint32_t i = 0; i < p->count; i++) {
        struct pulled *x = &p->entries[i];
        if (x->version == NULL || !x->version->revoked) continue;
        error_retry(&e, REASON_VERSION_REVOKED, 1, "version %" PRIu64 " was taken back while others were copied; begin "
                    "again with the newest", x->version->number);
        pull_fault(x, &e);
    }
    if (p->failed.reason != REASON_NONE) {
        answer_error(p->request, &p->failed);
    } else {
        f.count = pull_fill(p, &a);
        f.faults = a.fault_count;
        wire_put_pull_done(&a.fixed, &f);
        p->request->server->core.counters.pulls += f.count;
        answer_send(p->request, &a);
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
        error_set(&x->pull->failed, REASON_DEVICE_LOST, "the device was lost while a value was copied from it");
    pull_pass(x->pull);
}

static enum status pull_find(struct pull *p, struct pulled *x, struct error *e)
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
    x->key = key_hold(k);
    if (x->entry.newer == 0 || v->number > x->entry.newer) x->version = version_hold(v);
    return STATUS_OK;
}

static enum status pull_read(struct request *r, const struct incoming *in, struct pull **out, struct error *e)
{
    struct reader fixed = reader_of(in->fixed), desc = reader_of(in->desc);
    struct wire_pull f;
    struct store *s = NULL;
    struct pull *p = NULL;
    enum status st = wire_get_pull(&fixed, &f) ? STATUS_OK : error_set(e, REASON_MALFORMED, "fixed fields of Pull");

    if (st == STATUS_OK) st = check_count(f.count, in->desc, wire_pull_entry_size, e);
    if (st == STATUS_OK) st = find_store(r->server, f.store, &s, e);
    if (st != STATUS_OK) return st;
    p = mem_zero(sizeof *p + f.count * sizeof p->entries[0]);
    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a pull");
    p->request = request_keep(r);
    p->store = s;
    p->count = f.count;
    if (session_worker(r->session, s, &p->worker, NULL) == STATUS_OK) worker_hold(p->worker);
    if (p->request == NULL) {
        pull_free(p);
        return error_set(e, REASON_NO_MEMORY, "no memory for a pull");
    }
    for (uint32_t i = 0; i < p->count; i++) {
        p->entries[i].pull = p;
        if (!wire_get_pull_entry(&desc, &p->entries[i].entry)) p->count = i;
    }
    *out = p;
    return STATUS_OK;
}

void method_Pull(struct request *r, const struct incoming *in)
{
    struct pull *p = NULL;
    struct error e;

    if (pull_read(r, in, &p, &e) != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    p->pending = 1;
    for (uint32_t i = 0; i < p->count; i++) {
        struct pulled *x = &p->entries[i];
        if (pull_find(p, x, &e) != STATUS_OK) {
            pull_fault(x, &e);
        } else if (x->version != NULL && x->version->host == NULL) {
            x->task.run = fetched;
            p->pending++;
            version_fetch(x->version, &x->task);
        }
    }
    pull_pass(p);
}

/* ---- Wait ------------------------------------------------------------------------------------------------------- */

static enum status find_condition_key(struct condition *c, uint64_t id, struct error *e)
{
    c->key = store_key_at(c->store, id);
    return c->key != NULL ? STATUS_OK : error_set(e, REASON_NO_KEY, "there is no key with id %" PRIu64 " in store '%s'; "
                                                  "it may have been deleted or replaced", id, c->store->name);
}

static enum status read_condition(struct request *r, struct reader *in, struct condition *c, struct error *e)
{
    const uint8_t *start = in->at;
    struct wire_wait_entry f;
    struct worker *w;
    enum status st;

    if (!wire_get_wait_entry(in, &f)) return error_set(e, REASON_MALFORMED, "a condition is cut off");
    struct bytes name = bytes_of(reader_take(in, f.name_size), f.name_size);
    reader_pad(in, start, 8);
    if (in->failed || f.kind < WAIT_TICKET || f.kind > WAIT_BARRIER)
        return error_set(e, REASON_MALFORMED, "a condition of kind %u", f.kind);
    st = find_store(r->server, f.store, &c->store, e);
    if (st != STATUS_OK) return st;
    c->kind = (enum wait_kind)f.kind;
    c->number = f.number;
    if (session_worker(r->session, c->store, &w, e) == STATUS_OK) c->worker = worker_hold(w);
    else if (f.kind != WAIT_VERSION) return e->status;
    switch (c->kind) {
    case WAIT_TICKET:
    case WAIT_VERSION: return find_condition_key(c, f.key, e);
    case WAIT_BARRIER: c->number = f.key; return STATUS_OK;
    case WAIT_INIT: break;
    }
    c->name = (struct key_name){.is_text = f.key_type == KEY_STR, .number = (int64_t)f.number, .text = name};
    return store_key_check(c->store, &c->name, e);
}

/* The names of conditions lie in the frame, which goes; they are copied behind each other. */
static bool keep_names(struct wait *w, struct bytes desc, void **block)
{
    const uint8_t *from = desc.at;
    uint8_t *copy;
    bool any = false;

    for (uint32_t i = 0; i < w->count; i++) any |= w->conditions[i].kind == WAIT_INIT && w->conditions[i].name.is_text;
    if (!any) return true;
    copy = mem_new(desc.size);
    if (copy == NULL) return false;
    if (desc.size > 0) memcpy(copy, from, desc.size);
    for (uint32_t i = 0; i < w->count; i++) {
        struct condition *c = &w->conditions[i];
        if (c->kind == WAIT_INIT && c->name.is_text) c->name.text.at = copy + ((const uint8_t *)c->name.text.at - from);
    }
    *block = copy;
    return true;
}

struct wait_request {
    struct request *request;
    void *names;
};

void wait_answer(struct wait *w)
{
    struct wait_request *owner = w->owner;
    struct wire_wait_done f = {0};
    struct answer a = {0};

    for (uint32_t i = 0; i < w->count; i++) {
        const struct condition *c = &w->conditions[i];
        struct wire_wait_result x = {.index = i, .state = c->state, .version = c->version};
        struct error e;
        if (c->state != WAIT_PENDING || c->text != NULL) {
            wire_put_wait_result(&a.desc, &x);
            f.count++;
        }
        if (c->state == WAIT_DONE || (c->state == WAIT_PENDING && c->text == NULL)) continue;
        error_set(&e, c->state == WAIT_FAILED ? c->reason : REASON_DEADLINE, "%s",
                  c->text != NULL ? c->text : reason_title(c->reason));
        answer_fault(&a, i, &e);
    }
    f.faults = a.fault_count;
    wire_put_wait_done(&a.fixed, &f);
    owner->request->session->waits--;
    owner->request->session->share->conditions -= w->count;
    answer_send(owner->request, &a);
    request_free(owner->request);
    mem_free(owner->names);
    mem_free(owner);
    wait_free(w);
}

static enum status wait_read(struct request *r, const struct incoming *in, struct wait **out, struct error *e)
{
    struct reader fixed = reader_of(in->fixed), desc = reader_of(in->desc);
    struct wait_request *owner = NULL;
    struct wait *w = NULL;
    struct wire_wait f;
    enum status st = wire_get_wait(&fixed, &f) ? STATUS_OK : error_set(e, REASON_MALFORMED, "fixed fields of Wait");

    if (st == STATUS_OK) st = check_count(f.count, in->desc, wire_wait_entry_size, e);
    if (st == STATUS_OK && (r->session->waits >= WAITS_MAX || r->session->share->conditions + f.count > CONDITIONS_MAX))
        st = error_retry(e, REASON_LIMIT, RETRY_MS, "%u Waits of this client with %u conditions hang already",
                         r->session->waits, r->session->share->conditions);
    if (st != STATUS_OK) return st;
    w = wait_new(&r->server->core, f.count);
    owner = mem_zero(sizeof *owner);
    if (w == NULL || owner == NULL) {
        st = error_set(e, REASON_NO_MEMORY, "no memory for a wait");
        goto out;
    }
    for (uint32_t i = 0; i < w->count; i++) {
        struct condition *c = &w->conditions[i];
        if (read_condition(r, &desc, c, e) == STATUS_OK) continue;
        if (desc.failed || e->reason == REASON_MALFORMED) {
            st = e->status;
            goto out;
        }
        c->state = WAIT_FAILED;
        c->reason = e->reason;
        c->text = mem_text(e->text, strlen(e->text));
    }
    owner->request = request_keep(r);
    if (owner->request == NULL || !keep_names(w, in->desc, &owner->names)) {
        request_free(owner->request);
        st = error_set(e, REASON_NO_MEMORY, "no memory for a wait");
        goto out;
    }
    r->session->waits++;
    r->session->share->conditions += w->count;
    w->owner = owner;
    w->answer = wait_answer;
    w->want = f.want == 0 ? 1 : f.want < f.count ? f.want : f.count;
    w->deadline_ms = r->server->core.now_ms + (f.time_ms < WAIT_MAX_MS ? f.time_ms : WAIT_MAX_MS);
    *out = w;
    w = NULL; /* the core's now */
    owner = NULL;
out:
    wait_free(w);
    mem_free(owner);
    return st;
}

void method_Wait(struct request *r, const struct incoming *in)
{
    struct wait *w = NULL;
    struct error e;

    if (wait_read(r, in, &w, &e) != STATUS_OK) answer_error(r, &e);
    else wait_begin(w);
}
