/* Push and Set: a value that is added to what there is, or takes its place. */
#include "service/op_data.h"

#include "service/account.h"
#include "service/base/mem.h"

#include <inttypes.h>

/* ---- reading ---------------------------------------------------------------------------------------------------- */

enum status push_read(const struct incoming *in, struct batch *b, uint32_t *store, struct error *e)
{
    struct reader r = reader_of(in->fixed);
    struct wire_push f;

    if (!wire_get_push(&r, &f))
        return error_set(e, REASON_MALFORMED, "fixed fields: %zu bytes, not %d", in->fixed.size, wire_push_size);
    *store = f.store;
    b->count = f.count;
    b->force = f.force != 0;
    return data_check_count(f.count, in->desc, wire_push_entry_size, e);
}

enum status push_read_entry(struct batch *b, struct entry *x, struct error *e)
{
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

static enum status check_type(const struct key *k, const struct entry *x, struct error *e)
{
    char shape[SHAPE_PRINT_SIZE], name[KEY_PRINT_SIZE];

    if (x->push.dtype != k->shape.dtype)
        return error_set(e, REASON_SHAPE_MISMATCH, "%s is %s, the value sent is %s", key_name_print(&k->name, name),
                         shape_print(&k->shape, shape), dtype_known(x->push.dtype)
                         ? dtype_numpy((enum dtype)x->push.dtype) : "of an unknown type");
    return data_check_extent(x, k->shape.size, e);
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
static enum status find_push(struct worker *w, const struct key *k, uint64_t step, uint64_t sequence, bool fed,
                             struct staging **out, struct error *e)
{
    struct staging *s = staging_find(w, STAGING_PUSH, k, step);

    *out = s;
    if (s == NULL) return STATUS_OK;
    if (s->sequence == sequence && s->fed != fed)
        return error_set(e, REASON_BAD_ARGUMENT, "the parts of push %" PRIu64 " before this one came %s; all of them "
                         "come the same way", step, s->fed ? "through a mailbox" : "in frames");
    if (s->sequence == sequence) return STATUS_OK;
    if (sequence < s->sequence)
        return error_set(e, REASON_CANCELLED, "push %" PRIu64 " was begun anew; this part of the earlier one is void",
                         step);
    *out = NULL;
    staging_free(s);
    return STATUS_OK;
}

enum status push_open(struct batch *b, const struct entry *x, uint64_t sequence, bool fed, struct staging **out,
                      bool *repeat, struct error *e)
{
    struct core *c = b->store->core;
    struct key *k;
    bool late;
    enum status st = find_key(b, x->push.key, &k, e);

    if (st == STATUS_OK) st = check_type(k, x, e);
    if (st == STATUS_OK) st = find_push(b->worker, k, x->push.step, sequence, fed, out, e);
    if (st != STATUS_OK || *out != NULL) return st;
    st = store_push_check(b->store, k, b->worker, x->push.step, repeat, &late, e);
    if (*repeat) c->counters.pushes_repeated++;
    if (st != STATUS_OK || *repeat) return st;
    bool advances = k->rounds[0] != NULL && k->rounds[0]->step == x->push.step;
    unsigned how = (advances ? STAGING_ADVANCES : 0) | (fed ? STAGING_FED : 0);
    st = staging_new(c, b->sums ? STAGING_SUM : STAGING_PUSH, k, b->worker, x->push.step, k->shape.size,
                     key_place(k, k->shape.dtype), how, out, e);
    if (st == STATUS_OK) (*out)->sequence = sequence;
    return st;
}

/* ---- Push ------------------------------------------------------------------------------------------------------- */

void push_answer(const struct request *r, struct answer *a, struct landed done)
{
    struct wire_push_done f = {.recorded = done.complete, .faults = a->fault_count, .applied = done.applied,
                               .window = account_staging_most(&r->server->core) / 2};

    wire_put_push_done(&a->fixed, &f);
    answer_send(r, a);
}

static struct land *land_of(struct frame_job *f) { return CONTAINER_OF(f, struct land, frame); }

static bool push_piece(struct frame_job *f)
{
    struct land *l = land_of(f);

    if (!land_piece(l)) return false;
    push_answer(&f->request, &l->answer, l->done);
    return true;
}

/* What has landed counts; the client asks again for an answer, over another connection. */
static void push_drop(struct frame_job *f) { answer_fini(&land_of(f)->answer); }

void method_Push(struct request *r, const struct incoming *in)
{
    struct land l = {.frame = {.request = *r, .in = *in, .run = push_piece, .drop = push_drop}};
    struct error e;

    if (data_read(r->peer, in, &l.batch, &e) != STATUS_OK) answer_error(r, &e);
    else if (in->header.flags & WIRE_FLAG_MAILBOX) mailbox_push(r, in, &l.batch);
    else frame_begin(&l.frame, sizeof l);
}

/* ---- Set -------------------------------------------------------------------------------------------------------- */

static enum status check_set(const struct batch *b, const struct key *k, struct error *e)
{
    return b->force ? STATUS_OK : round_none_open(k, e);
}

enum status set_open(struct batch *b, const struct entry *x, uint64_t sequence, struct staging **out,
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
    return staging_new(b->store->core, STAGING_SET, k, b->worker, sequence, k->shape.size,
                       key_place(k, k->shape.dtype), 0, out, e);
}

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

enum status set_complete(struct batch *b, struct staging *st, struct set *set, struct error *e)
{
    struct key *k = st->key;
    struct set_update *x = NULL;
    char name[KEY_PRINT_SIZE];
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
    while (k->rounds[0] != NULL) {
        error_set(&why, REASON_ROUND_FAILED, "%s in store '%s' was set by force while round %" PRIu64 " was open: "
                  "the round does not count; pull the new value and push the next step", key_name_print(&k->name, name), k->store->name,
                  k->rounds[0]->step);
        round_fail(k->rounds[0], &why);
    }
    x->set = set;
    set->pending++;
    set->count++;
    x->update = (struct update){.kind = UPDATE_SET, .key = key_hold(k), .updater = updater_hold(k->store->assign),
                                .last = st, .contributors = 1, .done = set_done};
    key_update(&x->update);
    return STATUS_OK;
}

/* Set is named: a repeat is answered again. Parts of one value share the name, so only the request that completes it
 * is remembered; the others are forgotten as soon as they have landed. */
bool set_answered_before(struct request *r)
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

static void set_landed(struct set *set, struct answer *a)
{
    const struct request *r = set->request;
    bool part = set->count == 0 && a->fault_count == 0;

    if (a->fault_count > 0) { /* the first fault speaks for the call */
        struct reader faults = reader_of(bytes_of(a->faults.at, a->faults.size));
        struct wire_fault f;
        set->failed = wire_get_fault(&faults, &f);
        error_retry(&set->error, reason_from_wire(f.reason), f.retry_ms, "%.*s", (int)f.text_size,
                    f.text_size > 0 ? (const char *)a->fault_text.at + f.text_offset : "");
    }
    if (part && r->header.sequence > 0) session_forget(r->session, r->header.sequence);
    answer_fini(a);
    set_end(set);
}

static bool set_piece(struct frame_job *f)
{
    struct land *l = land_of(f);

    if (!land_piece(l)) return false;
    set_landed(l->set, &l->answer);
    return true;
}

/* A repeat is a new try. */
static void set_drop(struct frame_job *f)
{
    struct set *set = land_of(f)->set;

    set->failed = true;
    error_retry(&set->error, REASON_CANCELLED, RETRY_MS, "the connection ended before all values were taken");
    answer_fini(&land_of(f)->answer);
    set_end(set);
}

void method_Set(struct request *r, const struct incoming *in)
{
    struct land l = {.frame = {.request = *r, .in = *in, .run = set_piece, .drop = set_drop}};
    struct set *set = NULL;
    struct error e;
    enum status st;

    if (set_answered_before(r)) return;
    st = data_read(r->peer, in, &l.batch, &e);
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
    l.set = set;
    frame_begin(&l.frame, sizeof l);
}
