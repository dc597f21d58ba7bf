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
    char room[KEY_NUMBER_SIZE];

    return updater_fits(store_updater(b->store), key_name_bytes(&x->name, room), x->shape.dtype, e);
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
    const struct key *k = outcome != INIT_REFUSED ? store_key_find(b->store, &x->name) : NULL;
    struct wire_init_result f = {.outcome = outcome};

    if (k != NULL) {
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

/* A frame of Init in pieces. Its entries are gone through once or twice: to be looked at and, when none is refused, taken
 * over (CHECK), unless one has to wait for rank 0 or the call is 0; or to land, and to be told of. Between two pieces others may have created or replaced a key: its entry is
 * decided by what is there then. */
struct init {
    struct land land;
    struct batch again;              /* stands at entry `told` */
    uint32_t told;
    bool landed, really;             /* the second time */
    bool waits;                      /* one of them, for rank 0 */
};

static struct init *init_of(struct frame_job *f)
{
    return CONTAINER_OF(CONTAINER_OF(f, struct land, frame), struct init, land);
}

static void init_send(struct init *x)
{
    const struct request *r = &x->land.frame.request;
    struct answer *a = &x->land.answer;
    struct wire_init_done f;
    struct error e;

    if (x->land.batch.entries.failed || x->again.entries.failed) {
        error_set(&e, REASON_MALFORMED, "the descriptors of Init end within an entry, or one of them is none");
        answer_fini(a);
        answer_error(r, &e);
        return;
    }
    f = (struct wire_init_done){.count = x->again.count, .faults = a->fault_count};
    wire_put_init_done(&a->fixed, &f);
    answer_send(r, a);
}

static void init_drop(struct frame_job *f) { answer_fini(&init_of(f)->land.answer); }

static void check_next(struct init *x, enum status found, const struct error *why)
{
    struct batch *b = &x->again;
    struct answer *a = &x->land.answer;
    enum init_outcome outcome = INIT_REFUSED;
    struct entry entry;
    struct key *k;
    struct error e;

    enum status st = data_read_entry(b, &entry, &e);
    if (st == STATUS_OK && found != STATUS_OK) e = *why;
    else if (st == STATUS_OK) outcome = init_decide(b, &entry, &k, &e);
    if (outcome == INIT_NEED_VALUE && check_new(b, &entry, &e) != STATUS_OK) outcome = INIT_REFUSED;
    if (x->really && outcome == INIT_EXISTED && adopt(b, k, &e) != STATUS_OK) outcome = INIT_REFUSED;
    if (outcome == INIT_REFUSED) answer_fault(a, x->told, &e);
    x->waits |= outcome == INIT_WAIT;
    if (!b->entries.failed) init_result(a, b, &entry, found == STATUS_OK ? outcome : INIT_REFUSED);
}

static void tell_next(struct init *x, enum status found, const struct error *why)
{
    struct batch *b = &x->again;
    enum init_outcome outcome = INIT_REFUSED;
    struct entry entry;
    struct key *k;
    struct error e;

    (void)why;
    if (data_read_entry(b, &entry, &e) == STATUS_OK && found == STATUS_OK) outcome = init_decide(b, &entry, &k, &e);
    if (b->entries.failed) return;
    if (outcome == INIT_EXISTED && init_was_this(b, k)) outcome = INIT_CREATED;
    if (outcome == INIT_NEED_VALUE && find_init(b, &entry) != NULL) outcome = INIT_PART;
    init_result(&x->land.answer, b, &entry, outcome);
}

/* Goes on through the entries, as far as the turn has time; true: to their end. */
static bool each_entry(struct init *x, void (*next)(struct init *x, enum status found, const struct error *why))
{
    const struct frame_job *f = &x->land.frame;
    struct batch *b = &x->again;
    struct error why = {.status = STATUS_OK};
    enum status found = data_find(f->request.peer, b, b->store_id, &why);

    for (; x->told < b->count && !b->entries.failed; x->told++) {
        if (frame_is_spent(f) && x->told > 0) return false;
        next(x, found, &why);
        core_spend(&f->request.server->core, 1);
    }
    return true;
}

static bool init_check_piece(struct frame_job *f)
{
    struct init *x = init_of(f);

    if (!each_entry(x, check_next)) return false;
    bool take_over = !x->waits && x->again.call != 0 && x->land.answer.fault_count == 0;
    if (!x->really && take_over && !x->again.entries.failed) {
        x->really = true;
        buf_clear(&x->land.answer.desc);
        x->again.entries = reader_of(f->in.desc);
        x->told = 0;
        if (!each_entry(x, check_next)) return false;
    }
    init_send(x);
    return true;
}

static bool init_piece(struct frame_job *f)
{
    struct init *x = init_of(f);

    if (!x->landed && !land_piece(&x->land)) return false;
    x->landed = true;
    if (!each_entry(x, tell_next)) return false;
    init_send(x);
    return true;
}

void method_Init(struct request *r, const struct incoming *in)
{
    bool check = r->header.flags & WIRE_FLAG_CHECK;
    struct init x = {.land.frame = {.request = *r, .in = *in, .run = check ? init_check_piece : init_piece, .drop = init_drop}};
    struct error e;

    if (data_read(r->peer, in, &x.land.batch, &e) != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    x.again = x.land.batch;
    frame_begin(&x.land.frame, sizeof x);
}
