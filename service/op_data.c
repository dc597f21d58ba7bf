/* What Init, Push and Set have in common: fixed fields and descriptors are read, an entry is decided, its bytes land.
 *
 * A frame with one large entry is decided in data_place, before its bytes are taken, and they go straight to staging
 * memory; a frame with small ones lands in the connection's scratch and is decided entry by entry. Both ways meet in
 * landed(), but for small pushes that need no staging at all (land_now). What is decided and what becomes of a whole
 * value is the method's: op_push.c, op_init.c.
 *
 * A frame has up to ENTRIES_MAX entries, more than a turn of the loop has time for. The rest of them goes on in the next
 * turns, in order and before anything else of the connection; of other clients something may come in between. */
#include "service/op_data.h"

#include <endian.h>
#include <inttypes.h>
#include <string.h>

/* ---- reading ---------------------------------------------------------------------------------------------------- */

enum status data_find_store(struct server *s, uint32_t id, struct store **out, struct error *e)
{
    *out = store_at(&s->core, id);
    return *out != NULL ? STATUS_OK
                        : error_set(e, REASON_NO_STORE, "there is no store with id %u; it may have been deleted", id);
}

enum status data_check_count(uint32_t count, struct bytes desc, size_t size, struct error *e)
{
    if (count > ENTRIES_MAX || (uint64_t)count * size > desc.size)
        return error_set(e, REASON_MALFORMED, "%u entries in descriptors of %zu bytes; at most %d", count, desc.size,
                         ENTRIES_MAX);
    return STATUS_OK;
}

enum status data_read(struct peer *p, const struct incoming *in, struct batch *b, struct error *e)
{
    uint32_t store = 0;
    enum status st;

    *b = (struct batch){.entries = reader_of(in->desc), .sums = in->value_count > 0};
    switch (in->header.method) {
    case WIRE_Init: b->kind = STAGING_INIT; break;
    case WIRE_Set: b->kind = STAGING_SET; break;
    default: b->kind = STAGING_PUSH; break;
    }
    st = b->kind == STAGING_INIT ? init_read(in, b, &store, e) : push_read(in, b, &store, e);
    b->store_id = store;
    if (st == STATUS_OK) st = data_find_store(p->server, store, &b->store, e);
    if (st == STATUS_OK && p->server->draining)
        st = error_set(e, REASON_DRAINING, "the daemon is shutting down; nothing new is taken");
    return st == STATUS_OK ? data_find(p, b, store, e) : st;
}

enum status data_find(struct peer *p, struct batch *b, uint32_t store, struct error *e)
{
    enum status st = data_find_store(p->server, store, &b->store, e);

    b->worker = NULL;
    if (st != STATUS_OK) return st;
    st = session_worker(p->session, b->store, &b->worker, e);
    bool may_be_outside = b->kind == STAGING_SET || (b->kind == STAGING_INIT && p->ops->admin);
    bool outside = st != STATUS_OK && e->reason == REASON_NOT_JOINED && may_be_outside;
    b->lowest = b->kind == STAGING_INIT && (outside || (st == STATUS_OK && store_lowest(b->store) == b->worker));
    return outside ? STATUS_OK : st;
}

enum status data_read_entry(struct batch *b, struct entry *x, struct error *e)
{
    *x = (struct entry){.size = 0};
    return b->kind == STAGING_INIT ? init_read_entry(b, x, e) : push_read_entry(b, x, e);
}

/* ---- deciding --------------------------------------------------------------------------------------------------- */

enum status data_check_extent(const struct entry *x, uint64_t whole, struct error *e)
{
    if (x->total != whole || x->offset > whole || x->size > whole - x->offset)
        return error_set(e, REASON_SHAPE_MISMATCH, "bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64 "; the value has %"
                         PRIu64, x->offset, x->offset + x->size, x->total, whole);
    return STATUS_OK;
}

static enum status entry_open(struct batch *b, const struct entry *x, uint64_t sequence, struct staging **out,
                              bool *repeat, struct error *e)
{
    *out = NULL;
    *repeat = false;
    switch (b->kind) {
    case STAGING_PUSH: return push_open(b, x, sequence, false, out, repeat, e);
    case STAGING_SET: return set_open(b, x, sequence, out, e);
    case STAGING_INIT:
    case STAGING_STATE:
    case STAGING_SUM: break;
    }
    return init_open(b, x, out, repeat, e);
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
    if (in->header.flags & WIRE_FLAG_MAILBOX) return PLACE_SCRATCH; /* the body says where the values are */
    enum status st = data_read(p, in, &b, &d->error);

    if (st != STATUS_OK || b.count != 1) {
        d->decided = st != STATUS_OK;
        return st != STATUS_OK ? place_failed(p, st) : PLACE_SCRATCH;
    }
    /* What is small is decided when it is there: then it may go from the frame to the device. */
    if (b.kind == STAGING_PUSH && in->header.body_size <= PUSH_NOW_SIZE) return PLACE_SCRATCH;
    d->decided = true;
    if (in->header.flags & WIRE_FLAG_CHECK) return PLACE_DROP; /* a check has no values */
    if (b.kind == STAGING_SET && session_known(p->session, in->header.sequence)) return PLACE_DROP;
    st = data_read_entry(&b, &x, &d->error);
    if (st == STATUS_OK && x.size != in->header.body_size)
        st = error_set(&d->error, REASON_MALFORMED, "an entry of %" PRIu64 " bytes in a body of %" PRIu64, x.size,
                       in->header.body_size);
    if (st == STATUS_OK) st = entry_open(&b, &x, in->header.sequence, &s, &d->repeat, &d->error);
    if (st != STATUS_OK || d->repeat) return place_failed(p, st);
    *at = staging_land(s, &d->landing, x.offset, x.size);
    return PLACE_AT;
}

/* ---- when the bytes are there ----------------------------------------------------------------------------------- */

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
    case STAGING_SET: return set_complete(b, s, set, e);
    case STAGING_INIT:
    case STAGING_STATE:
    case STAGING_SUM: break;
    }
    return init_complete(b, s, e);
}

/* One entry of a frame whose body lies in memory. */
static enum status land_copy(struct batch *b, const struct entry *x, uint64_t sequence, const void *from,
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

/* A push of several values of this process, which are summed where the key lies. It waits for that: the caller, whose
 * values they are, would have to wait anyway. */
static enum status land_sum(struct batch *b, const struct incoming *in, const struct entry *x, bool *complete, struct error *e)
{
    struct landing l = {.staging = NULL};
    struct staging *s;
    enum status st = entry_open(b, x, in->header.sequence, &s, complete, e);

    if (st != STATUS_OK || *complete) return st;
    st = core_sum(b->store->core, &(struct sum_list){.values = in->values, .value_count = in->value_count,
                                                     .type = s->key->shape.dtype, .count = s->key->shape.count, .to = s->mem}, e);
    if (st != STATUS_OK) {
        staging_free(s);
        return st;
    }
    (void)staging_land(s, &l, 0, s->size);
    return landed(b, &l, NULL, complete, e);
}

static const struct key *key_ahead(const struct store *s, const struct reader *entries, size_t size, unsigned by)
{
    uint64_t id;

    if (entries->left < (by + 1) * size) return NULL;
    memcpy(&id, entries->at + by * size, sizeof id);
    uint64_t slot = le64toh(id) % KEYS_MAX;
    return slot < s->slot_count ? store_slot(s, slot) : NULL;
}

/* With ten thousand keys none of this is in the cache, and one key has to be there before its versions can be named. */
void data_look_ahead(const struct store *s, const struct reader *entries, size_t size)
{
    const struct key *far = key_ahead(s, entries, size, 12), *near = key_ahead(s, entries, size, 5);

    for (size_t at = 0; far != NULL && at < offsetof(struct key, name); at += 64) __builtin_prefetch((const char *)far + at);
    if (near == NULL) return;
    const struct version *spare = LIST_FIRST(struct version, node, &near->spares);
    const char *from = near->current->host, *to = spare != NULL ? spare->mem.host : NULL;
    for (size_t at = 0; at < near->shape.size && at < 256; at += 64) {
        if (from != NULL) __builtin_prefetch(from + at);
        if (to != NULL) __builtin_prefetch(to + at, 1);
    }
}

/* A small push goes from the frame to the device; false: nothing has happened. */
static bool land_now(struct batch *b, const struct incoming *in, uint64_t *at, bool *applied)
{
    struct reader r = b->entries;
    struct wire_push_entry x;

    if (b->kind != STAGING_PUSH || in->body == NULL || !wire_get_push_entry(&r, &x) || x.codec != CODEC_NONE ||
        x.flags != 0 || x.offset != 0 || x.size != x.total || *at > in->header.body_size ||
        x.size > in->header.body_size - *at)
        return false;
    struct key *k = store_key_at(b->store, x.key);
    if (k == NULL || k->shape.size != x.size || (unsigned)k->shape.dtype != x.dtype ||
        !store_push_now(k, b->worker, x.step, (const uint8_t *)in->body + *at, applied))
        return false;
    b->store->core->counters.bytes_in += x.size;
    b->entries = r;
    *at += x.size;
    return true;
}

bool data_is_applied(const struct batch *b, const struct entry *x)
{
    const struct key *k = b->kind == STAGING_PUSH ? store_key_at(b->store, x->push.key) : NULL;
    const struct progress *p = k != NULL ? worker_seen(b->worker, k) : NULL;

    return p != NULL && !worker_pending(p, x->push.step) && !worker_failed(p, x->push.step);
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

/* An entry that could not be decided before its bytes were there. */
static enum status land_entry(struct land *l, const struct entry *x, bool *complete, struct error *e)
{
    const struct incoming *in = &l->frame.in;
    struct peer *p = l->frame.request.peer;
    struct batch *b = &l->batch;

    if (b->sums) return land_sum(b, in, x, complete, e);
    if (p->placed.decided) return land_placed(p, b, l->set, complete, e);
    if (in->body == NULL && x->size > 0) return error_retry(e, REASON_MALFORMED, RETRY_MS, "the body was not taken");
    return land_copy(b, x, in->header.sequence, x->size > 0 ? (const uint8_t *)in->body + l->at : NULL, l->set, complete, e);
}

/* found: what data_find said. Where store or worker are gone the rest of the entries is refused, one by one. */
static void land_next(struct land *l, enum status found, const struct error *why)
{
    struct batch *b = &l->batch;
    uint64_t end = l->frame.in.header.body_size;
    bool complete = false, applied = false;
    struct entry x;
    struct error e;

    l->at = (l->at + WIRE_ALIGN - 1) / WIRE_ALIGN * WIRE_ALIGN;
    if (found != STATUS_OK) {
        answer_fault(&l->answer, l->next, why);
        return;
    }
    if (b->kind == STAGING_PUSH) data_look_ahead(b->store, &b->entries, wire_push_entry_size);
    if (!l->frame.request.peer->placed.decided && land_now(b, &l->frame.in, &l->at, &applied)) {
        l->done.complete++;
        l->done.applied += applied;
        return;
    }
    enum status st = data_read_entry(b, &x, &e);
    bool inside = x.size == 0 || (l->at <= end && x.size <= end - l->at);
    if (st == STATUS_OK && !inside)
        st = error_set(&e, REASON_MALFORMED, "entry %u lies beyond the body's end", l->next);
    if (st == STATUS_OK) st = land_entry(l, &x, &complete, &e);
    if (st != STATUS_OK) answer_fault(&l->answer, l->next, &e);
    l->done.complete += complete && st == STATUS_OK;
    l->done.applied += complete && st == STATUS_OK && data_is_applied(b, &x);
    l->at = inside ? l->at + x.size : end + 1; /* nothing that follows such a one has a place */
}

bool land_piece(struct land *l)
{
    struct core *c = &l->frame.request.server->core;
    unsigned cost = l->batch.kind == STAGING_INIT ? WORK_INIT : 1;
    struct error why = {.status = STATUS_OK};
    enum status found = l->next == 0 ? STATUS_OK : data_find(l->frame.request.peer, &l->batch, l->batch.store_id, &why);

    for (; l->next < l->batch.count && !l->batch.entries.failed; l->next++) {
        if (core_is_spent(c) && l->next > 0) return false;
        land_next(l, found, &why);
        core_spend(c, cost);
    }
    return true;
}
