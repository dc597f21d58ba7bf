/* Init: keys come to be, with their first values, or are found to be there. */
#include "service/op_data.h"

#include "service/account.h"
#include "service/base/mem.h"

#include <string.h>

/* ---- reading ---------------------------------------------------------------------------------------------------- */

enum status init_read(const struct incoming *in, struct batch *b, uint32_t *store, struct error *e)
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
    return data_check_count(f.count, in->desc, wire_init_entry_size, e);
}

enum status init_read_entry(struct batch *b, struct entry *x, struct error *e)
{
    const uint8_t *start = b->entries.at;
    struct wire_init_entry *i = &x->init;
    uint64_t size = 0;

    if (!wire_get_init_entry(&b->entries, i) || i->ndim > DIMS_MAX || !dtype_known(i->dtype) || i->key_type > KEY_STR ||
        i->storage != STORAGE_DENSE || (i->key_type != KEY_STR && i->name_size > 0)) {
        b->entries.failed = true; /* where the next one begins is not known */
        return error_set(e, REASON_MALFORMED, "an entry of Init: dtype %u, %u dimensions, key type %u, a name of %u bytes, "
                         "storage %u", i->dtype, i->ndim, i->key_type, i->name_size, i->storage);
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

/* ---- deciding --------------------------------------------------------------------------------------------------- */

/* Was k made, or taken over, by this very call? */
static bool init_was_this(const struct batch *b, const struct key *k)
{
    if (b->call == 0) return false; /* it only looks */
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

/* The memory in which the value arrives becomes the value: so it has its home from now on. */
static enum status stage(struct batch *b, const struct key_name *name, const struct key_shape *shape,
                         struct staging **out, struct error *e)
{
    struct core *c = b->store->core;
    struct room room = key_room(b->store, name, shape);
    enum status st;

    for (;;) {
        st = staging_new(c, STAGING_INIT, NULL, b->worker, b->call, shape->size,
                         mem_place_of(room.home, dtype_size(shape->dtype)), 0, out, e);
        if (!core_may_move(c, room.home, st, e)) break;
        core_room_move(c, &room);
    }
    if (st == STATUS_OK) (*out)->room = room;
    else core_room_free(c, &room);
    return st;
}

/* The account has room for the key, and while its value is on its way for that. */
static enum status check_room(const struct store *s, const struct entry *x, struct error *e)
{
    uint64_t needs = key_needs(s, &x->name, &x->shape), state = needs - KEY_VERSIONS * x->shape.size - KEY_COST;

    return account_check(s->core, needs, key_needs_free(s, &x->shape, state), "a new key", e);
}

enum status init_open(struct batch *b, const struct entry *x, struct staging **out, bool *repeat,
                             struct error *e)
{
    struct init_wanted *w;
    struct key *k;
    enum status st = data_check_extent(x, x->shape.size, e);

    if (st == STATUS_OK) st = check_new(b, x, e);
    if (st != STATUS_OK) return st;
    switch (init_decide(b, x, &k, e)) {
    case INIT_REFUSED: return e->status;
    case INIT_NEED_VALUE: break;
    default: *repeat = true; return STATUS_OK; /* the outcome is read again when the frame is whole */
    }
    *out = find_init(b, x);
    if (*out != NULL) return STATUS_OK;
    st = check_room(b->store, x, e); /* before its bytes are taken */
    if (st != STATUS_OK) return st;
    w = wanted_new(x);
    if (w == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for an init");
    st = stage(b, &x->name, &x->shape, out, e);
    if (st == STATUS_OK) (*out)->init = w;
    else mem_free(w);
    return st;
}

/* ---- a value is whole ------------------------------------------------------------------------------------------- */

enum status init_complete(struct batch *b, struct staging *st, struct error *e)
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

/* ---- the method ------------------------------------------------------------------------------------------------- */

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

/* First all are looked at; only when none is refused or has to wait for rank 0, those that exist are taken over. Call 0
 * only looks. */
static void init_check(struct request *r, const struct incoming *in, struct batch *b, struct answer *a, bool really)
{
    bool waits = false;

    for (uint32_t i = 0; i < b->count; i++) {
        struct entry x;
        struct key *k;
        struct error e;
        enum init_outcome outcome = INIT_REFUSED;
        if (data_read_entry(b, &x, &e) == STATUS_OK) outcome = init_decide(b, &x, &k, &e);
        if (outcome == INIT_NEED_VALUE && check_new(b, &x, &e) != STATUS_OK) outcome = INIT_REFUSED;
        if (really && outcome == INIT_EXISTED && adopt(b, k, &e) != STATUS_OK) outcome = INIT_REFUSED;
        if (outcome == INIT_REFUSED) answer_fault(a, i, &e);
        if (b->entries.failed) return;
        waits |= outcome == INIT_WAIT;
        init_result(a, b, &x, outcome);
    }
    if (really || waits || b->call == 0 || a->fault_count > 0) return;
    buf_clear(&a->desc);
    b->entries = reader_of(in->desc);
    init_check(r, in, b, a, true);
}

static void init_values(struct request *r, const struct incoming *in, struct batch *b, struct answer *a)
{
    struct batch again = *b;

    data_land(r, in, b, NULL, a);
    /* The outcomes: who is there now and was initialised by this call is done. */
    for (uint32_t i = 0; i < again.count; i++) {
        enum init_outcome outcome = INIT_REFUSED;
        struct entry x;
        struct key *k;
        struct error e;
        if (data_read_entry(&again, &x, &e) == STATUS_OK) outcome = init_decide(&again, &x, &k, &e);
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

    if (data_read(r->peer, in, &b, &e) != STATUS_OK) {
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
