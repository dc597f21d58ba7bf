/* GetStates and SetStates: what updaters keep for keys, out and in.
 *
 * Both take a turn in the line of the key (key.h), so that what is read is of one moment, and what is written is not
 * mixed with a step. What is read is copied to the host first; an answer takes as much of it as fits, and the client
 * asks for the rest of that copy. */
#include "service/op.h"

#include "service/base/mem.h"

#include <inttypes.h>
#include <string.h>

static enum status find_key(struct store *s, uint64_t id, struct key **out, struct error *e)
{
    *out = store_key_at(s, id);
    return *out != NULL ? STATUS_OK
                        : error_set(e, REASON_NO_KEY, "there is no key with id %" PRIu64 " in store '%s'; it may have "
                                    "been deleted or replaced", id, s->name);
}

/* The fixed fields of both. one: the least size of an entry. */
static enum status read_fixed(struct request *r, const struct incoming *in, size_t one, struct store **store,
                              uint32_t *count, struct error *e)
{
    struct reader fixed = reader_of(in->fixed);
    struct wire_states f;

    if (!wire_get_states(&fixed, &f) || f.count > ENTRIES_MAX || (uint64_t)f.count * one > in->desc.size)
        return error_set(e, REASON_MALFORMED, "%s: fixed fields of %zu bytes, %u entries in descriptors of %zu",
                         wire_method_name(r->header.method), in->fixed.size, f.count, in->desc.size);
    *count = f.count;
    *store = store_at(&r->server->core, f.store);
    return *store != NULL ? STATUS_OK : error_set(e, REASON_NO_STORE, "there is no store with id %u; it may have been "
                                                  "deleted", f.store);
}

/* ---- GetStates -------------------------------------------------------------------------------------------------- */

struct getting {
    struct request *request;
    uint32_t count;
    uint32_t pending;                        /* turns, and the one who builds */
    struct error failed;                     /* its reason is not NONE: the whole has failed */
    struct got {
        struct update turn;                  /* holds the key while it is lined up */
        struct getting *getting;
        struct wire_states_entry entry;
        struct wire_state state;             /* without what is sent of it */
        struct buf about;                    /* its updater and slots */
        struct state_copy *copy;             /* held; NULL: a fault, or none is wanted */
        struct error *error;                 /* owned */
    } entries[];
};

static void getting_free(struct getting *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        state_copy_drop(g->entries[i].copy);
        buf_fini(&g->entries[i].about);
        mem_free(g->entries[i].error);
    }
    request_free(g->request);
    mem_free(g);
}

static void get_fault(struct got *x, const struct error *e)
{
    x->error = mem_new(sizeof *e);
    if (x->error != NULL) *x->error = *e;
    else error_retry(&x->getting->failed, REASON_NO_MEMORY, RETRY_MS, "no memory to read states");
}

/* The slots that an entry asks for: all, or one. Answers their bytes, gaps included. */
static enum status wanted(const struct key *k, uint32_t slot, struct state_piece out[STATE_PIECES], unsigned *count,
                          uint64_t *size, struct error *e)
{
    unsigned n = state_pieces(k, out);
    char name[KEY_PRINT_SIZE];

    if (slot > n)
        return error_set(e, REASON_NO_SLOT, "slot %u of %s, which has %u", slot, key_name_print(&k->name, name), n);
    if (slot > 0) {
        out[0] = out[slot - 1];
        n = 1;
    }
    *size = 0;
    for (unsigned i = 0; i < n; i++) *size = wire_aligned(*size) + out[i].size;
    *count = n;
    return STATUS_OK;
}

static void put_word(struct buf *b, const char *word, size_t size)
{
    buf_add(b, word, size);
    buf_pad(b, 8);
}

/* What is told of a state besides its bytes. */
static void describe(struct got *x, const struct key *k)
{
    struct state_piece pieces[STATE_PIECES];
    const char *updater = k->state.updater != NULL ? updater_type(k->state.updater) : "";
    unsigned n = 0;

    x->state = (struct wire_state){.key = k->id, .updates = k->state.updates,
                                   .since_begun = k->state.updates - k->state.begun,
                                   .product = wire_of_double(k->state.product)};
    if (wanted(k, x->entry.slot, pieces, &n, &x->state.total, NULL) != STATUS_OK) return;
    x->state.slots = (uint16_t)n;
    x->state.updater_size = (uint8_t)strlen(updater);
    put_word(&x->about, updater, strlen(updater));
    for (unsigned i = 0; i < n; i++) {
        size_t size = strlen(pieces[i].name);
        wire_put_slot(&x->about, &(struct wire_slot){.count = pieces[i].count, .dtype = (uint8_t)pieces[i].dtype,
                                                     .name_size = (uint8_t)size});
        put_word(&x->about, pieces[i].name, size);
    }
    if (x->about.failed) error_retry(&x->getting->failed, REASON_NO_MEMORY, RETRY_MS, "no memory to read states");
}

static enum status look(struct update *u, struct error *e)
{
    struct got *x = CONTAINER_OF(u, struct got, turn);
    struct key *k = u->key;
    struct state_piece pieces[STATE_PIECES];
    uint64_t size, at = 0;
    unsigned n;
    enum status s = wanted(k, x->entry.slot, pieces, &n, &size, e);

    if (s == STATUS_OK) s = state_copy_new(k->core, x->getting->request->session->share, k->id, size, &x->copy, e);
    for (unsigned i = 0; i < n && s == STATUS_OK; i++) {
        memset(x->copy->bytes + at, 0, (size_t)(wire_aligned(at) - at));
        at = wire_aligned(at);
        s = state_read(k, &pieces[i], x->copy->bytes + at, NULL, e);
        at += pieces[i].size;
    }
    return s;
}

static void get_pass(struct getting *g);

static void looked(struct update *u, const struct error *e)
{
    struct got *x = CONTAINER_OF(u, struct got, turn);
    struct key *k = u->key;

    if (e != NULL) get_fault(x, e);
    else describe(x, k);
    if (e == NULL) x->state.copy = x->copy->number;
    key_drop(k);
    get_pass(x->getting);
}

/* Bytes that an answer still has room for. */
static uint64_t room(const struct answer *a)
{
    uint64_t used = WIRE_HEADER_SIZE + KIB(4) + a->desc.size + a->faults.size + a->fault_text.size + a->body_size;

    return used < FRAME_SIZE_MAX ? (FRAME_SIZE_MAX - used) / WIRE_ALIGN * WIRE_ALIGN : 0;
}

/* Whether entry i has to be asked for again: only the first may go out in part, unless a part is what was asked for. */
static bool is_too_much(const struct got *x, uint32_t i, const struct answer *a)
{
    size_t head = a->desc.size + a->faults.size + wire_state_size + x->about.size + 2 * wire_fault_size;

    if (head > FRAME_HEAD_MAX - KIB(1)) return true;
    return i > 0 && x->copy != NULL && x->error == NULL && x->about.size + x->copy->size > room(a);
}

static void put_bytes(struct getting *g, struct got *x, struct answer *a)
{
    const struct state_copy *c = x->copy;
    uint64_t rest = c->size - x->entry.offset, size = x->entry.size > 0 && x->entry.size < rest ? x->entry.size : rest;

    if (size > room(a)) size = room(a);
    x->state.offset = x->entry.offset;
    x->state.size = size;
    x->state.total = c->size;
    answer_copy(a, c->bytes != NULL ? c->bytes + x->entry.offset : NULL, size);
    state_copies_sent(&g->request->session->copies, x->copy, size);
}

static void put_state(struct getting *g, uint32_t i, struct answer *a)
{
    struct got *x = &g->entries[i];
    struct error e;

    if (x->error == NULL && x->copy != NULL && x->entry.offset > x->copy->size) {
        error_set(&e, REASON_BAD_ARGUMENT, "offset %" PRIu64 " of a state of %" PRIu64 " bytes", x->entry.offset,
                  x->copy->size);
        get_fault(x, &e);
    }
    if (x->error != NULL) {
        answer_fault(a, i, x->error);
        x->state = (struct wire_state){.key = x->entry.key};
        buf_clear(&x->about);
    } else if (x->copy != NULL) {
        put_bytes(g, x, a);
    }
    wire_put_state(&a->desc, &x->state);
    buf_add(&a->desc, x->about.at, x->about.size);
}

static void get_answer(struct getting *g)
{
    struct wire_states_done f = {0};
    struct answer a = {0};

    for (; f.count < g->count && !is_too_much(&g->entries[f.count], f.count, &a); f.count++) put_state(g, f.count, &a);
    if (g->failed.reason != REASON_NONE) {
        answer_fini(&a);
        answer_error(g->request, &g->failed);
    } else {
        f.faults = a.fault_count;
        wire_put_states_done(&a.fixed, &f);
        answer_send(g->request, &a);
    }
    getting_free(g);
}

static void get_pass(struct getting *g)
{
    if (--g->pending == 0) get_answer(g);
}

static enum status get_read(struct request *r, const struct incoming *in, struct getting **out, struct store **store,
                            struct error *e)
{
    struct reader desc = reader_of(in->desc);
    struct getting *g;
    uint32_t count;
    enum status s = read_fixed(r, in, wire_states_entry_size, store, &count, e);

    if (s != STATUS_OK) return s;
    if (count > STATES_AT_ONCE) count = STATES_AT_ONCE; /* the rest is asked for again */
    g = mem_zero(sizeof *g + count * sizeof g->entries[0]);
    if (g == NULL) return error_set(e, REASON_NO_MEMORY, "no memory to read states");
    g->request = request_keep(r);
    if (g->request == NULL) {
        mem_free(g);
        return error_set(e, REASON_NO_MEMORY, "no memory to read states");
    }
    for (; g->count < count; g->count++) {
        struct got *x = &g->entries[g->count];
        x->getting = g;
        if (!wire_get_states_entry(&desc, &x->entry)) break;
    }
    *out = g;
    return STATUS_OK;
}

/* A part of a copy that was taken before. */
static enum status find_copy(struct got *x, struct error *e)
{
    struct state_copy *c = state_copies_find(&x->getting->request->session->copies, x->entry.copy, x->entry.key);

    if (c == NULL)
        return error_retry(e, REASON_VERSION_REVOKED, 1, "copy %" PRIu64 " of a state is no longer held; begin again "
                           "with a new one", x->entry.copy);
    x->copy = state_copy_hold(c);
    x->state = (struct wire_state){.key = x->entry.key, .copy = c->number};
    return STATUS_OK;
}

/* *sum: bytes of the copies that are wanted before this one. What cannot go into the answer is not copied for it. */
static enum status get_begin(struct got *x, struct store *s, bool describe_only, uint64_t *sum, struct error *e)
{
    struct state_piece pieces[STATE_PIECES];
    struct key *k = NULL;
    uint64_t size;
    unsigned n;
    enum status st;

    if (x->entry.copy != 0 && !describe_only) return find_copy(x, e);
    st = find_key(s, x->entry.key, &k, e);
    if (st == STATUS_OK) st = wanted(k, x->entry.slot, pieces, &n, &size, e);
    if (st != STATUS_OK) return st;
    *sum += size;
    if (describe_only) {
        describe(x, k);
    } else if (*sum == size || *sum <= FRAME_SIZE_MAX) {
        x->getting->pending++;
        x->turn = (struct update){.kind = UPDATE_TURN, .key = key_hold(k), .turn = look, .done = looked};
        key_update(&x->turn);
    }
    return STATUS_OK;
}

void method_GetStates(struct request *r, const struct incoming *in)
{
    bool describe_only = (r->header.flags & WIRE_FLAG_CHECK) != 0;
    struct getting *g = NULL;
    struct store *s = NULL;
    struct error e;
    uint64_t sum = 0;

    if (get_read(r, in, &g, &s, &e) != STATUS_OK) {
        answer_error(r, &e);
        return;
    }
    g->pending = 1;
    for (uint32_t i = 0; i < g->count; i++) {
        if (get_begin(&g->entries[i], s, describe_only, &sum, &e) != STATUS_OK) get_fault(&g->entries[i], &e);
        if (sum > FRAME_SIZE_MAX && !describe_only) {
            g->count = i + (i == 0); /* the rest is asked for again */
            break;
        }
    }
    get_pass(g);
}

/* ---- SetStates -------------------------------------------------------------------------------------------------- */

/* An entry in hand; what it points to lies in the frame, or in the `about` of a staging. */
struct given {
    struct wire_state state;
    struct bytes updater;
    struct bytes slots;                      /* as they are written */
    struct bytes about;                      /* all of it */
};

/* Where the bytes of a state go. */
struct layout {
    unsigned count;
    struct state_piece pieces[STATE_PIECES]; /* in the order given */
    uint64_t offsets[STATE_PIECES];
    uint64_t size;
};

static enum status read_given(struct reader *r, struct given *x, struct error *e)
{
    const uint8_t *start = r->at;
    struct wire_slot slot;

    wire_get_state(r, &x->state);
    x->updater = bytes_of(reader_take(r, x->state.updater_size), x->state.updater_size);
    reader_pad(r, start, 8);
    const uint8_t *slots = r->at;
    bool utf8 = !r->failed && bytes_is_utf8(x->updater);
    for (unsigned i = 0; i < x->state.slots && !r->failed; i++) {
        wire_get_slot(r, &slot);
        struct bytes name = bytes_of(reader_take(r, slot.name_size), slot.name_size);
        reader_pad(r, start, 8);
        utf8 = utf8 && !r->failed && bytes_is_utf8(name);
    }
    if (r->failed || !utf8) {
        r->failed = true; /* where the next one begins is not known */
        return error_set(e, REASON_MALFORMED, "an entry of SetStates is cut off, or one of its names is not UTF-8");
    }
    x->slots = bytes_of(slots, (size_t)(r->at - slots));
    x->about = bytes_of(start, (size_t)(r->at - start));
    return STATUS_OK;
}

static enum status check_slot(const struct key *k, const struct state_piece *p, const struct wire_slot *slot,
                              struct error *e)
{
    char name[KEY_PRINT_SIZE];

    if (slot->dtype == p->dtype && slot->count == p->count) return STATUS_OK;
    return error_set(e, REASON_SHAPE_MISMATCH, "slot '%s' of %s has %" PRIu64 " elements of %s; sent are %" PRIu64
                     " of %s", p->name, key_name_print(&k->name, name), p->count, dtype_numpy(p->dtype), slot->count,
                     dtype_known(slot->dtype) ? dtype_numpy((enum dtype)slot->dtype) : "an unknown type");
}

/* Takes the slot out of those that are expected. */
static enum status place_slot(const struct key *k, struct state_piece *expected, unsigned n, struct reader *r,
                              const uint8_t *start, struct layout *l, struct error *e)
{
    char key[KEY_PRINT_SIZE];
    struct wire_slot slot;
    unsigned i = 0;

    wire_get_slot(r, &slot);
    struct bytes name = bytes_of(reader_take(r, slot.name_size), slot.name_size);
    reader_pad(r, start, 8);
    while (i < n && (expected[i].size == 0 || !bytes_equal(bytes_text(expected[i].name), name))) i++;
    if (i == n)
        return error_set(e, REASON_NO_SLOT, "%s has no slot '%.*s' under this updater, or it was given twice",
                         key_name_print(&k->name, key), (int)name.size, (const char *)name.at);
    enum status s = check_slot(k, &expected[i], &slot, e);
    if (s != STATUS_OK) return s;
    l->offsets[l->count] = wire_aligned(l->size);
    l->size = l->offsets[l->count] + expected[i].size;
    l->pieces[l->count++] = expected[i];
    expected[i].size = 0;
    return STATUS_OK;
}

/* Is this a state that k has under u? Whole, with every slot. */
static enum status lay_out(const struct key *k, const struct updater *u, const struct given *x, struct layout *l,
                           struct error *e)
{
    struct state_piece expected[STATE_PIECES];
    unsigned n = state_expects(k, u, expected);
    struct reader r = reader_of(x->slots);
    char name[KEY_PRINT_SIZE];
    enum status s = STATUS_OK;

    l->count = 0;
    l->size = 0;
    if (!bytes_equal(x->updater, bytes_text(updater_type(u))))
        return error_set(e, REASON_UPDATER_UNFIT, "the state of %s is one of '%.*s', and the updater is %s: set that "
                         "updater first", key_name_print(&k->name, name), (int)x->updater.size,
                         (const char *)x->updater.at, updater_type(u));
    for (unsigned i = 0; i < x->state.slots && s == STATUS_OK; i++)
        s = place_slot(k, expected, n, &r, x->slots.at, l, e);
    if (s != STATUS_OK) return s;
    for (unsigned i = 0; i < n; i++)
        if (expected[i].size > 0)
            return error_set(e, REASON_BAD_ARGUMENT, "slot '%s' of %s is missing", expected[i].name,
                             key_name_print(&k->name, name));
    if (x->state.total == l->size) return STATUS_OK;
    return error_set(e, REASON_SHAPE_MISMATCH, "the state of %s has %" PRIu64 " bytes; sent are %" PRIu64,
                     key_name_print(&k->name, name), l->size, x->state.total);
}

/* One SetStates request: answered when all that it completes is in place. First all entries are looked at; when none is
 * refused, and no check is all that was wanted, they count. */
struct setting {
    struct request *request;
    struct store *store;
    struct worker *worker;                   /* NULL: has not joined */
    uint32_t pending, count;
    bool failed;
    struct error error;
};

struct set_state {
    struct update turn;                      /* its `last` is the staging that has the bytes */
    struct setting *setting;
    struct buf about;                        /* what `given` points into */
    struct given given;
};

static void set_failed(struct setting *s, const struct error *e)
{
    if (!s->failed) s->error = *e;
    s->failed = true;
}

static void set_pass(struct setting *s)
{
    struct wire_states_done f = {.count = s->count};
    struct answer a = {0};

    if (--s->pending > 0) return;
    if (s->failed) {
        answer_error(s->request, &s->error);
    } else {
        wire_put_states_done(&a.fixed, &f);
        if (s->request->header.sequence > 0 && s->count > 0 && !a.fixed.failed)
            session_result(s->request->session, s->request->header.sequence, a.fixed.at, a.fixed.size);
        else if (s->request->header.sequence > 0) /* a part: the others bear the same name */
            session_forget(s->request->session, s->request->header.sequence);
        answer_send(s->request, &a);
    }
    request_free(s->request);
    mem_free(s);
}

static enum status put_in_place(struct update *u, struct error *e)
{
    struct set_state *x = CONTAINER_OF(u, struct set_state, turn);
    struct key *k = u->key;
    const uint8_t *bytes = u->last->pin;
    struct layout l;
    enum status s = lay_out(k, u->updater, &x->given, &l, e);

    if (s == STATUS_OK) s = state_fit(k, u->updater, e);
    for (unsigned i = 0; i < l.count && s == STATUS_OK; i++)
        s = state_write(k, &l.pieces[i], bytes + l.offsets[i], NULL, e);
    return s;
}

static void in_place(struct update *u, const struct error *e)
{
    struct set_state *x = CONTAINER_OF(u, struct set_state, turn);
    const struct wire_state *f = &x->given.state;
    struct error why;
    enum status s = STATUS_OK;

    if (e == NULL) s = state_restore(u->key, f->updates, f->since_begun, wire_to_double(f->product), &why);
    if (e != NULL || s != STATUS_OK) set_failed(x->setting, e != NULL ? e : &why);
    set_pass(x->setting);
    key_drop(u->key);
    buf_fini(&x->about);
    mem_free(x);
}

/* The state is whole: lines it up. Takes the staging. */
static enum status complete(struct setting *set, struct staging *st, struct error *e)
{
    struct set_state *x = mem_zero(sizeof *x);

    if (x == NULL) {
        staging_free(st);
        return error_set(e, REASON_NO_MEMORY, "no memory for a state");
    }
    x->about = st->about;
    st->about = (struct buf){0};
    struct reader r = reader_of(bytes_of(x->about.at, x->about.size));
    enum status s = read_given(&r, &x->given, e);
    if (s != STATUS_OK) {
        buf_fini(&x->about);
        mem_free(x);
        staging_free(st);
        return s;
    }
    x->setting = set;
    set->pending++;
    set->count++;
    /* As a push keeps the updater that it was recorded under: one that is set now comes after. */
    x->turn = (struct update){.kind = UPDATE_TURN, .key = key_hold(st->key), .last = st, .turn = put_in_place,
                              .updater = updater_hold(store_updater(st->key->store)), .done = in_place};
    key_update(&x->turn);
    return STATUS_OK;
}

/* The description without what differs from part to part. */
static enum status common(const struct given *x, struct buf *out, struct error *e)
{
    struct wire_state f = x->state;

    f.offset = f.size = 0;
    wire_put_state(out, &f);
    buf_add(out, (const uint8_t *)x->about.at + wire_state_size, x->about.size - wire_state_size);
    return out->failed ? error_set(e, REASON_NO_MEMORY, "no memory for a state") : STATUS_OK;
}

static enum status open_state(struct setting *set, struct key *k, const struct given *x, struct staging **out,
                              struct error *e)
{
    uint64_t sequence = set->request->header.sequence;
    struct buf about = {0};
    char name[KEY_PRINT_SIZE];
    enum status s = common(x, &about, e);

    *out = s == STATUS_OK && set->worker != NULL ? staging_find(set->worker, STAGING_STATE, k, sequence) : NULL;
    if (*out != NULL && !bytes_equal(bytes_of(about.at, about.size), bytes_of((*out)->about.at, (*out)->about.size)))
        s = error_set(e, REASON_BAD_ARGUMENT, "the parts of the state of %s differ in what they say of it",
                      key_name_print(&k->name, name));
    if (s != STATUS_OK || *out != NULL) {
        buf_fini(&about);
        return s;
    }
    s = staging_new(k->core, STAGING_STATE, k, set->worker, sequence, x->state.total, (struct mem_place){0}, 0, out,
                    e);
    if (s == STATUS_OK) (*out)->about = about;
    else buf_fini(&about);
    return s;
}

static enum status land(struct setting *set, const struct given *x, const uint8_t *from, struct error *e)
{
    struct landing l = {.staging = NULL};
    struct staging *st = NULL;
    struct key *k = NULL;
    enum status s = find_key(set->store, x->state.key, &k, e);

    if (s == STATUS_OK) s = open_state(set, k, x, &st, e);
    if (s != STATUS_OK) return s;
    void *to = staging_land(st, &l, x->state.offset, x->state.size);
    if (x->state.size > 0) memcpy(to, from, (size_t)x->state.size);
    k->core->counters.bytes_in += x->state.size;
    s = staging_landed(&l, e);
    return s == STATUS_OK && st->complete ? complete(set, st, e) : s;
}

static enum status check_given(const struct setting *set, const struct given *x, struct error *e)
{
    const struct wire_state *f = &x->state;
    struct key *k = NULL;
    struct layout l;
    enum status s = find_key(set->store, f->key, &k, e);

    if (s == STATUS_OK) s = state_check_counters(f->updates, f->since_begun, wire_to_double(f->product), e);
    if (s == STATUS_OK) s = lay_out(k, store_updater(set->store), x, &l, e);
    if (s != STATUS_OK) return s;
    if (f->offset > f->total || f->size > f->total - f->offset)
        return error_set(e, REASON_SHAPE_MISMATCH, "bytes %" PRIu64 " to %" PRIu64 " of a state of %" PRIu64, f->offset,
                         f->offset + f->size, f->total);
    if (f->size < f->total && set->worker == NULL && (set->request->header.flags & WIRE_FLAG_CHECK) == 0)
        return error_set(e, REASON_NOT_JOINED, "a state in parts can only be set by a worker of the store; join it "
                         "first");
    return STATUS_OK;
}

/* A frame of SetStates in pieces. */
struct states_frame {
    struct frame_job frame;
    struct setting *set;             /* owned by the states that it completes, and by this */
    uint32_t store, count;
    struct reader desc;              /* stands at entry `next` */
    uint32_t next;
    uint64_t at;                     /* of the body, used so far */
    bool really;                     /* the second time */
};

static struct states_frame *states_of(struct frame_job *f) { return CONTAINER_OF(f, struct states_frame, frame); }

static enum status next_state(struct states_frame *x, struct error *e)
{
    const struct incoming *in = &x->frame.in;
    uint64_t end = in->header.body_size;
    struct given given;
    enum status s = read_given(&x->desc, &given, e);

    if (s == STATUS_OK) s = check_given(x->set, &given, e);
    if (s != STATUS_OK || (in->header.flags & WIRE_FLAG_CHECK) != 0) return s;
    x->at = wire_aligned(x->at);
    if (given.state.size > 0 && (x->at > end || given.state.size > end - x->at))
        return error_set(e, REASON_MALFORMED, "entry %u lies beyond the body's end", x->next);
    if (given.state.size > 0 && in->body == NULL)
        return error_retry(e, REASON_MALFORMED, RETRY_MS, "the body was not taken");
    if (x->really) s = land(x->set, &given, given.state.size > 0 ? (const uint8_t *)in->body + x->at : NULL, e);
    x->at += given.state.size;
    return s;
}

/* Store and worker as they are by now. */
static enum status find_setter(struct states_frame *x, struct error *e)
{
    struct setting *set = x->set;
    const struct request *r = &x->frame.request;

    set->store = store_at(&r->server->core, x->store);
    set->worker = NULL;
    if (set->store == NULL)
        return error_set(e, REASON_NO_STORE, "there is no store with id %u; it may have been deleted", x->store);
    enum status s = session_worker(r->session, set->store, &set->worker, e);
    return s == STATUS_OK || e->reason == REASON_NOT_JOINED ? STATUS_OK : s;
}

/* *more: the turn has no time for the rest. */
static enum status each_state(struct states_frame *x, bool *more, struct error *e)
{
    enum status s = find_setter(x, e);

    for (uint32_t from = x->next; x->next < x->count && s == STATUS_OK; x->next++) {
        *more = frame_is_spent(&x->frame) && x->next > from;
        if (*more) break;
        s = next_state(x, e);
        core_spend(&x->frame.request.server->core, 1 + updater_overrides(store_updater(x->set->store)) / 4);
    }
    return s;
}

static bool states_piece(struct frame_job *f)
{
    struct states_frame *x = states_of(f);
    bool more = false;
    struct error e;
    enum status s = each_state(x, &more, &e);

    if (more) return false;
    if (s == STATUS_OK && !x->really && (f->in.header.flags & WIRE_FLAG_CHECK) == 0) {
        x->really = true;
        x->desc = reader_of(f->in.desc);
        x->next = 0;
        x->at = 0;
        s = each_state(x, &more, &e);
        if (more) return false;
    }
    if (s != STATUS_OK) set_failed(x->set, &e);
    set_pass(x->set);
    return true;
}

/* A repeat is a new try. */
static void states_drop(struct frame_job *f)
{
    struct error e;

    error_retry(&e, REASON_CANCELLED, RETRY_MS, "the connection ended before all states were taken");
    set_failed(states_of(f)->set, &e);
    set_pass(states_of(f)->set);
}

void method_SetStates(struct request *r, const struct incoming *in)
{
    struct states_frame x = {.frame = {.request = *r, .in = *in, .run = states_piece, .drop = states_drop},
                             .desc = reader_of(in->desc)};
    struct setting *set;
    struct store *store = NULL;
    struct error e;
    enum status s;

    if (set_answered_before(r)) return;
    set = mem_zero(sizeof *set);
    if (set != NULL) set->request = request_keep(r);
    if (set == NULL || set->request == NULL) {
        mem_free(set);
        error_set(&e, REASON_NO_MEMORY, "no memory to set states");
        answer_error(r, &e);
        return;
    }
    set->pending = 1; /* this function's own, so that it is not answered before all entries are seen */
    s = read_fixed(r, in, wire_state_size, &store, &x.count, &e);
    if (s == STATUS_OK && r->server->draining)
        s = error_set(&e, REASON_DRAINING, "the daemon is shutting down; nothing new is taken");
    if (s != STATUS_OK) {
        set_failed(set, &e);
        set_pass(set);
        return;
    }
    x.set = set;
    x.store = store->id;
    frame_begin(&x.frame, sizeof x);
}
