/* GetStates and SetStates: own pushes of the keys first, then one request after another: many small states in one, a
 * large state in parts. States are set only when all of them have been checked. */
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <string.h>

enum {
    FRAME_ENTRIES = 256,
    SLOTS_MAX = 64,              /* more than any updater has */
    RENEWALS_MAX = 3,            /* of what is known of the keys, and of a state that was not whole */
    RESTARTS_MAX = 1000          /* of copies that were taken back */
};

/* One key's state. */
struct item {
    struct quiet quiet;
    struct key *key;
    const struct paramd_state *given;        /* set: the caller's */
    struct paramd_state got;                 /* get: with */
    struct paramd_slot *slots;               /* their data owned */
    struct buf names;                        /* of the updater and the slots */
    uint64_t copy;                           /* 0: none was named yet */
    uint64_t sequence;                       /* of the parts */
    uint64_t moved, total;                   /* bytes */
    bool done;
};

enum phase { PHASE_WAIT, PHASE_CHECK, PHASE_MOVE };

struct op_states {
    struct op op;
    bool sets;
    enum phase phase;
    size_t *slots;                           /* for each key of the call: which of the operation's keys */
    const struct paramd_state *given;
    struct item *items;
    size_t count, at;                        /* at: the first that is not done */
    bool flying;
    unsigned renewed, restarted;
    struct paramd_state *answer;             /* get: in the order of the call */
};

static struct op_states *states_op(struct op *op) { return (struct op_states *)(void *)op; }

static void proceed(struct op_states *p)
{
    while (p->at < p->count && p->items[p->at].done) p->at++;
    if (p->at < p->count) {
        op_want(&p->op, ROLE_DATA);
        return;
    }
    if (p->phase == PHASE_MOVE) {
        for (size_t n = 0; n < p->count && !p->sets; n++) p->answer[n] = p->items[p->slots[n]].got;
        op_finish(&p->op);
        return;
    }
    p->phase = PHASE_MOVE;
    p->at = 0;
    for (size_t i = 0; i < p->count; i++) p->items[i].done = false;
    proceed(p);
}

static void malformed(struct op_states *p)
{
    struct error e;

    error_set(&e, REASON_INTERNAL, "the daemon's answer to %s does not fit what was asked for",
              p->sets ? "SetStates" : "GetStates");
    op_fail(&p->op, &e);
}

static void forget(struct item *i)
{
    for (size_t n = 0; n < i->got.slot_count; n++) mem_free(i->slots[n].data);
    mem_free(i->slots);
    buf_fini(&i->names);
    i->slots = NULL;
    i->got = (struct paramd_state){0};
    i->copy = i->sequence = i->moved = 0;
}

/* Whether it was begun again. */
static bool begin_again(struct op_states *p, const struct error *e)
{
    switch (e->reason) {
    case REASON_NO_KEY:
    case REASON_KEY_DELETED: /* perhaps it was made anew under another id */
        if (p->renewed++ >= RENEWALS_MAX) return false;
        for (size_t i = 0; i < p->count; i++) p->items[i].key->known = 0;
        break;
    case REASON_VERSION_REVOKED:
        if (p->restarted++ >= RESTARTS_MAX) return false;
        break;
    default:
        if (e->retry_ms == 0) return false;
        op_hint(&p->op, e);
        op_wake_at(&p->op, p->op.engine->now + e->retry_ms);
        return true;
    }
    for (size_t i = p->at; i < p->count; i++)
        if (!p->items[i].done) forget(&p->items[i]);
    op_resolve(&p->op);
    return true;
}

static void states_wake(struct op *op) { proceed(states_op(op)); }

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static uint64_t slot_size(const struct paramd_slot *s) { return s->count * dtype_size((enum dtype)s->dtype); }

static uint64_t size_of(const struct paramd_state *s)
{
    uint64_t size = 0;

    for (size_t i = 0; i < s->slot_count; i++) size = wire_aligned(size) + slot_size(&s->slots[i]);
    return size;
}

/* Moves bytes offset.. of a state between its slots and `bytes`, whose gaps are zeros. */
static void move(const struct paramd_state *s, uint64_t offset, uint64_t size, uint8_t *bytes, bool out)
{
    uint64_t start = 0;

    if (out) memset(bytes, 0, size);
    for (size_t i = 0; i < s->slot_count; i++) {
        uint64_t from = wire_aligned(start), end = from + slot_size(&s->slots[i]);
        start = end;
        uint64_t a = from > offset ? from : offset, b = end < offset + size ? end : offset + size;
        if (a >= b) continue;
        uint8_t *slot = (uint8_t *)s->slots[i].data + (a - from);
        if (out) memcpy(bytes + (a - offset), slot, b - a);
        else memcpy(slot, bytes + (a - offset), b - a);
    }
}

/* ---- getting ----------------------------------------------------------------------------------------------------- */

static bool read_word(struct reader *r, const uint8_t *start, size_t size, struct buf *names)
{
    const void *at = reader_take(r, size);

    if (at != NULL) buf_add(names, at, size);
    buf_add(names, "", 1);
    reader_pad(r, start, 8);
    return !r->failed;
}

static bool read_slots(struct item *i, const struct wire_state *f, const uint8_t *start, struct reader *r)
{
    struct wire_slot slot;

    for (unsigned n = 0; n < f->slots; n++) {
        struct paramd_slot *s = &i->slots[n];
        if (!wire_get_slot(r, &slot) || !read_word(r, start, slot.name_size, &i->names) || !dtype_known(slot.dtype) ||
            slot.count > f->total / dtype_size((enum dtype)slot.dtype))
            return false;
        *s = (struct paramd_slot){.dtype = slot.dtype, .count = slot.count};
        i->got.slot_count++;
    }
    i->total = size_of(&i->got);
    return i->total == f->total;
}

/* The first answer about a key: what there is, and memory for it. */
static enum status describe(struct item *i, const struct wire_state *f, const uint8_t *start, struct reader *r,
                            struct error *e)
{
    if (f->slots > SLOTS_MAX || f->total > VALUE_SIZE_MAX || !read_word(r, start, f->updater_size, &i->names))
        return error_set(e, REASON_INTERNAL, "a state that cannot be read");
    i->slots = mem_array(f->slots, sizeof *i->slots);
    if (i->slots == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a state");
    i->got = (struct paramd_state){.updates = f->updates, .since_begun = f->since_begun, .slots = i->slots,
                                   .product = wire_to_double(f->product)};
    if (!read_slots(i, f, start, r)) return error_set(e, REASON_INTERNAL, "a state whose slots cannot be read");
    if (i->names.failed) return error_set(e, REASON_NO_MEMORY, "no memory for a state");
    const char *name = (const char *)i->names.at;
    i->got.updater = name;
    for (size_t n = 0; n < i->got.slot_count; n++) {
        name += strlen(name) + 1;
        i->slots[n].name = name;
        i->slots[n].data = mem_aligned(slot_size(&i->slots[n]));
        if (i->slots[n].data == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a state");
    }
    return STATUS_OK;
}

/* One result, and its bytes at *at of the body. */
static enum status read_state(struct item *i, struct answer_reader *a, uint64_t *at, struct error *e)
{
    const uint8_t *start = a->results.at;
    struct wire_state f;
    enum status s = STATUS_OK;

    if (!wire_get_state(&a->results, &f)) return error_set(e, REASON_INTERNAL, "a state is cut off");
    if (i == NULL) return STATUS_OK; /* a fault has nothing else */
    if (i->copy == 0) s = describe(i, &f, start, &a->results, e);
    if (s != STATUS_OK) return s;
    *at = wire_aligned(*at);
    if (f.key != i->key->id || f.offset != i->moved || f.total != i->total || f.size > f.total - f.offset ||
        (f.size == 0 && i->moved < i->total) || (i->copy != 0 && f.copy != i->copy) || f.copy == 0 ||
        (f.size > 0 && (*at > a->body.size || f.size > a->body.size - *at)))
        return error_set(e, REASON_INTERNAL, "a state that was not asked for");
    if (f.size > 0) move(&i->got, f.offset, f.size, (uint8_t *)(uintptr_t)a->body.at + *at, false);
    *at += f.size;
    i->copy = f.copy;
    i->moved += f.size;
    i->done = i->moved == i->total;
    return STATUS_OK;
}

static void read_states(struct op_states *p, struct call *c, const struct incoming *in)
{
    struct reader fixed = reader_of(in->fixed);
    struct answer_reader a = answer_of(in);
    struct wire_states_done done;
    struct error e, refused = {0};
    uint64_t at = 0;

    if (!wire_get_states_done(&fixed, &done) || done.count == 0 || done.count > c->item_count) {
        malformed(p);
        return;
    }
    /* The faults lie behind results of any length: they are found from the end. */
    struct reader faults = a.results;
    uint64_t size = (uint64_t)done.faults * wire_fault_size;
    if (size > faults.left) {
        malformed(p);
        return;
    }
    reader_take(&faults, faults.left - size);
    struct answer_reader behind = {faults, a.body};
    uint32_t index;
    for (uint32_t n = 0; n < done.faults && answer_next_fault(&behind, &index, &e); n++) {
        if (index >= c->item_count) continue;
        if (refused.status == STATUS_OK) refused = e;
        c->items[index] = NULL;
    }
    for (uint32_t n = 0; n < done.count; n++) {
        enum status s = read_state(c->items[n], &a, &at, &e);
        if (s == STATUS_OK) continue;
        if (e.reason == REASON_INTERNAL) malformed(p);
        else op_fail(&p->op, &e);
        return;
    }
    if (refused.status == STATUS_OK) proceed(p);
    else if (!begin_again(p, &refused)) op_fail(&p->op, &refused);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static uint64_t part_size(const struct op_states *p)
{
    uint64_t most = p->op.engine->session.part_max;

    return most < PART_SIZE ? most : PART_SIZE;
}

static struct call *frame_new(struct op_states *p)
{
    struct call *c = call_new(&p->op, p->sets ? WIRE_SetStates : WIRE_GetStates);

    if (c == NULL) return NULL;
    if (!call_items(c, FRAME_ENTRIES)) c->desc.failed = true;
    if (p->phase == PHASE_CHECK) c->flags = WIRE_FLAG_CHECK;
    return c;
}

static void close_frame(struct op_states *p, struct call *c)
{
    wire_put_states(&c->fixed, &(struct wire_states){.store = p->op.engine->store, .count = (uint32_t)c->item_count});
    c->body_size = c->body.size;
}

/* How large a state is cannot be known before; what the answer has no room for is asked for again. */
static struct call *ask(struct op_states *p)
{
    struct call *c = frame_new(p);
    uint64_t size = 0;

    if (c == NULL || c->desc.failed) return c;
    for (size_t n = p->at; n < p->count && c->item_count < FRAME_ENTRIES; n++) {
        struct item *i = &p->items[n];
        if (i->done) continue;
        bool alone = i->copy != 0 || i->key->size >= part_size(p) / 4;
        if (c->item_count > 0 && (alone || size > part_size(p))) break;
        wire_put_states_entry(&c->desc, &(struct wire_states_entry){
            .key = i->key->id, .copy = i->copy, .offset = i->moved, .size = alone ? part_size(p) : 0,
        });
        c->items[c->item_count++] = i;
        size += 2 * i->key->size + 512;
        if (alone) break;
    }
    c->answer_size = PART_SIZE;
    close_frame(p, c);
    return c;
}

static void put_word(struct buf *b, const char *word)
{
    buf_text(b, word);
    buf_pad(b, 8);
}

static void put_state(struct call *c, const struct item *i, uint64_t size)
{
    const struct paramd_state *s = i->given;

    wire_put_state(&c->desc, &(struct wire_state){
        .key = i->key->id, .updates = s->updates, .since_begun = s->since_begun, .product = wire_of_double(s->product),
        .offset = i->moved, .size = size, .total = i->total, .slots = (uint16_t)s->slot_count,
        .updater_size = (uint8_t)strlen(s->updater),
    });
    put_word(&c->desc, s->updater);
    for (size_t n = 0; n < s->slot_count; n++) {
        const struct paramd_slot *slot = &s->slots[n];
        wire_put_slot(&c->desc, &(struct wire_slot){.count = slot->count, .dtype = (uint8_t)slot->dtype,
                                                    .name_size = (uint8_t)strlen(slot->name)});
        put_word(&c->desc, slot->name);
    }
}

static void put_bytes(struct call *c, const struct item *i, uint64_t size)
{
    buf_pad(&c->body, WIRE_ALIGN);
    void *to = size > 0 ? buf_room(&c->body, size) : NULL;
    if (to != NULL) move(i->given, i->moved, size, to, true);
}

static struct call *give(struct op_states *p)
{
    struct call *c = frame_new(p);
    uint64_t sum = 0, most = part_size(p);

    if (c == NULL || c->desc.failed) return c;
    for (size_t n = p->at; n < p->count && c->item_count < FRAME_ENTRIES; n++) {
        struct item *i = &p->items[n];
        uint64_t left = i->total - i->moved, size = p->phase == PHASE_CHECK ? 0 : left < most ? left : most;
        if (i->done) continue;
        bool part = p->phase == PHASE_MOVE && i->total > most;
        if (c->item_count > 0 && (part || sum + size > most)) break;
        put_state(c, i, size);
        if (p->phase == PHASE_MOVE) put_bytes(c, i, size);
        c->items[c->item_count++] = i;
        c->size = sum += size;
        if (!part) continue;
        if (i->sequence == 0) i->sequence = c->sequence;
        c->sequence = i->sequence;
        break;
    }
    c->answer_size = 1024;
    close_frame(p, c);
    return c;
}

static struct call *states_next(struct op *op, enum role role)
{
    struct op_states *p = states_op(op);

    if (role != ROLE_DATA || p->phase == PHASE_WAIT || p->flying || op->resolving || p->at == p->count) return NULL;
    struct call *c = p->sets ? give(p) : ask(p);
    p->flying = c != NULL;
    return c;
}

/* ---- setting ----------------------------------------------------------------------------------------------------- */

static void read_set(struct op_states *p, struct call *c, const struct incoming *in)
{
    struct reader fixed = reader_of(in->fixed);
    struct item *first = c->items[0];
    struct wire_states_done done;
    struct error e;

    if (!wire_get_states_done(&fixed, &done)) {
        malformed(p);
        return;
    }
    first->moved += c->item_count == 1 ? c->size : 0;
    bool part = p->phase == PHASE_MOVE && c->item_count == 1 && first->moved < first->total && done.count == 0;
    if (p->phase == PHASE_MOVE && !part && done.count != c->item_count) {
        /* All parts were taken, and yet it is not whole: the daemon has dropped some for lack of progress. */
        error_set(&e, REASON_INTERNAL, "a state that was sent whole is not in place");
        first->moved = first->sequence = 0;
        if (p->renewed++ < RENEWALS_MAX) proceed(p);
        else op_fail(&p->op, &e);
        return;
    }
    for (size_t n = 0; n < c->item_count && !part; n++) ((struct item *)c->items[n])->done = true;
    proceed(p);
}

static void states_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_states *p = states_op(op);

    p->flying = false;
    if (op->result.finished) return;
    if (why == NULL && p->sets) read_set(p, c, in);
    else if (why == NULL) read_states(p, c, in);
    else if (!begin_again(p, why)) op_fail(op, why);
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

static void states_waited(struct op *op)
{
    struct op_states *p = states_op(op);

    p->phase = p->sets ? PHASE_CHECK : PHASE_MOVE;
    proceed(p);
}

static void states_settled(struct op *op)
{
    struct error e;
    enum status s = STATUS_OK;

    for (size_t k = 0; s == STATUS_OK && k < op->held_count; k++) s = op_cond_pushes(op, op->held[k], &e);
    if (s == STATUS_OK) op_wait_for(op, op->cond_count);
    else op_fail(op, &e);
}

static void states_resolved(struct op *op)
{
    struct op_states *p = states_op(op);

    if (p->phase != PHASE_WAIT) {
        proceed(p);
        return;
    }
    for (size_t i = 0; i < p->count; i++) {
        p->items[i].quiet.op = op;
        if (key_quiet_wait(p->items[i].key, &p->items[i].quiet)) op->quiet_left++;
    }
    if (op->quiet_left == 0) states_settled(op);
}

static void states_ended(struct op *op)
{
    struct op_states *p = states_op(op);

    for (size_t i = 0; p->items != NULL && i < p->count; i++) list_remove(&p->items[i].quiet.node);
}

static void states_free(struct op *op)
{
    struct op_states *p = states_op(op);

    for (size_t i = 0; p->items != NULL && i < p->count; i++) forget(&p->items[i]);
    mem_free(p->items);
    mem_free(p->slots);
    mem_free(p->answer);
}

static void states_what(const struct op *op, struct buf *out)
{
    buf_format(out, " of %zu keys", op->held_count);
}

#define STATES_OPS(word)                                                                                            \
    {.name = word, .need = NEED_STORE, .size = sizeof(struct op_states), .resolved = states_resolved,               \
     .waited = states_waited, .settled = states_settled, .next = states_next, .answer = states_answer,              \
     .wake = states_wake, .ended = states_ended, .free = states_free, .what = states_what}

static const struct op_ops get_ops = STATES_OPS("get_states"), set_ops = STATES_OPS("set_states");

static enum status check_given(const struct paramd_state *s, const struct key_name *n, struct error *e)
{
    char name[80];
    bool sound = s->updater != NULL && strlen(s->updater) <= UINT8_MAX && s->slot_count <= SLOTS_MAX;

    key_name_text(n, name, sizeof name);
    for (size_t i = 0; sound && i < s->slot_count; i++) {
        const struct paramd_slot *x = &s->slots[i];
        sound = x->name != NULL && strlen(x->name) <= UINT8_MAX && x->dtype >= 0 && dtype_known((unsigned)x->dtype) &&
                x->count <= VALUE_SIZE_MAX / dtype_size((enum dtype)x->dtype) && (x->data != NULL || x->count == 0);
    }
    return sound ? STATUS_OK : error_set(e, REASON_BAD_ARGUMENT, "key %s: a state has the type of its updater, and at "
                                         "most %d slots with a name, a dtype and data", name, SLOTS_MAX);
}

static enum status hold_all(struct op_states *p, size_t count, const struct paramd_key *keys, struct error *e)
{
    struct key_name n;
    bool is_new;

    for (size_t i = 0; i < count; i++) {
        enum status s = key_name_of(&keys[i], &n, e);
        if (s == STATUS_OK && p->sets) s = check_given(&p->given[i], &n, e);
        if (s == STATUS_OK) s = op_hold(&p->op, &keys[i], &p->slots[i], &is_new, e);
        if (s != STATUS_OK) return s;
        if (!is_new) return error_set(e, REASON_BAD_ARGUMENT, "a key occurs twice: each has one state");
    }
    for (size_t i = 0; i < count; i++) {
        struct item *x = &p->items[p->slots[i]];
        x->key = p->op.held[p->slots[i]];
        if (!p->sets) continue;
        x->given = &p->given[i];
        x->total = size_of(x->given);
    }
    p->count = count;
    return STATUS_OK;
}

static enum status begin(struct engine *en, size_t count, const struct paramd_key *keys,
                         const struct paramd_state *given, struct op **out, struct error *e)
{
    struct op *op;
    enum status s = op_new(en, given != NULL ? &set_ops : &get_ops, false, &op, e);

    if (s != STATUS_OK) return s;
    struct op_states *p = states_op(op);
    p->sets = given != NULL;
    p->given = given;
    p->slots = mem_array(count, sizeof *p->slots);
    p->items = mem_array(count, sizeof *p->items);
    p->answer = mem_array(count, sizeof *p->answer);
    if (p->slots == NULL || p->items == NULL || p->answer == NULL)
        s = error_set(e, REASON_NO_MEMORY, "no memory for the states of %zu keys", count);
    else s = hold_all(p, count, keys, e);
    if (s != STATUS_OK) {
        op_abandon(op);
        return s;
    }
    op_resolve(op);
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}

enum status op_get_states(struct engine *en, size_t count, const struct paramd_key *keys, struct op **out,
                          struct error *e)
{
    return begin(en, count, keys, NULL, out, e);
}

enum status op_set_states(struct engine *en, size_t count, const struct paramd_key *keys,
                          const struct paramd_state *states, struct op **out, struct error *e)
{
    static const struct paramd_state nothing;

    return begin(en, count, keys, count > 0 ? states : &nothing, out, e);
}

const struct paramd_state *op_states_at(const struct op *op)
{
    const struct op_states *p = (const struct op_states *)(const void *)op;

    return op->ops == &get_ops && op->result.finished && op->result.error.status == STATUS_OK ? p->answer : NULL;
}
