/* Init, in two steps: first all keys are checked, and only when none is refused the values are sent that are needed.
 * A key whose value rank 0 is to give is waited for and then checked again.
 *
 * A check of one frame takes those keys over that are there, unless one of the frame is refused or waits. A call of
 * several frames therefore looks at all of them before (call number 0, which takes nothing over). */
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    FRAME_ENTRIES = 4096,
    FRAME_DESC = 512 << 10,
    PIECES_HERE = 16,
    REFUSED_MAX_MS = 250,
    RENEWALS_MAX = 3
};

enum item_state { ITEM_CHECK, ITEM_WAIT, ITEM_FOUND, ITEM_VALUE, ITEM_FLYING, ITEM_LATER, ITEM_DONE };

struct item {
    struct list_node node;       /* of init->checks or init->values */
    struct op_init *init;
    size_t index;                /* in the call, and of the operation's keys: keys are distinct */
    enum item_state state;
    void *fetched;               /* owned: the value, if it lies on a GPU; NULL: not needed yet */
    uint64_t size, sent, accepted;
    unsigned open, renewed, refused;
    bool restart, made;
    uint64_t id, next_step;      /* of one that was found */
};

struct op_init {
    struct op op;
    struct tensors t;
    uint64_t call;
    struct item *items;
    struct list checks, values;  /* what is to be sent */
    size_t open_checks, left, made;
    bool looking;                /* checks take nothing over yet */
    struct error failed;         /* the first; status OK: none */
};

static struct op_init *init_op(struct op *op) { return (struct op_init *)(void *)op; }

static void enter(struct item *i, enum item_state state)
{
    struct op_init *p = i->init;

    i->state = state;
    list_remove(&i->node);
    if (state == ITEM_CHECK) list_append(&p->checks, &i->node);
    if (state == ITEM_VALUE) list_append(&p->values, &i->node);
    if (state == ITEM_CHECK || state == ITEM_VALUE) op_want(&p->op, ROLE_DATA);
}

static void note_failure(struct op_init *p, const struct error *e)
{
    if (p->failed.status == STATUS_OK) p->failed = *e;
}

/* ---- outcomes ---------------------------------------------------------------------------------------------------- */

enum { NAMES_TOLD = 3 };

/* A failure after the first value was sent names what was made. */
static void fail(struct op_init *p)
{
    struct buf names = {0};
    struct error e = p->failed;
    size_t named = 0;

    for (size_t n = 0; n < p->t.count && named < NAMES_TOLD; n++) {
        char name[80];
        if (!p->items[n].made) continue;
        key_name_text(&p->op.held[n]->name, name, sizeof name);
        buf_format(&names, "%s%s", named++ > 0 ? ", " : "", name);
    }
    buf_add(&names, "", 1);
    if (named > 0 && !names.failed) {
        error_retry(&e, p->failed.reason, p->failed.retry_ms, "%.220s (of %zu keys %zu were made before that: %s%s)",
                    p->failed.text, p->t.count, p->made, (const char *)names.at, p->made > named ? ", ..." : "");
        e.status = p->failed.status;
    }
    buf_fini(&names);
    op_fail(&p->op, &e);
}

static void item_done(struct item *i, const struct wire_init_result *r)
{
    struct op_init *p = i->init;
    const struct paramd_tensor *t = &p->t.values[i->index];
    struct key *k = p->op.held[i->index];

    if (r != NULL && r->key != 0 && r->next_step != 0)
        key_learn(k, &(struct key_facts){.id = r->key, .dtype = (enum dtype)tensor_dtype(t), .ndim = (unsigned)t->ndim,
                                         .shape = t->shape, .next_step = r->next_step}, p->op.engine->joining);
    else
        k->known = 0;
    i->made = r != NULL && r->outcome == INIT_CREATED;
    p->made += i->made;
    enter(i, ITEM_DONE);
    if (--p->left > 0) return;
    if (p->failed.status == STATUS_OK) op_finish(&p->op);
    else fail(p);
}

/* After the first failure no more keys are made than are under way. */
static void item_failed(struct item *i, const struct error *e)
{
    struct op_init *p = i->init;
    bool first = p->failed.status == STATUS_OK;

    note_failure(p, e);
    item_done(i, NULL);
    for (size_t n = 0; first && n < p->t.count && !p->op.result.finished; n++) {
        struct item *other = &p->items[n];
        if (other->state == ITEM_VALUE || other->state == ITEM_LATER) item_done(other, NULL);
    }
}

/* Keys that were only looked at are taken over now. false: there are none. */
static bool take_over(struct op_init *p)
{
    size_t count = 0;

    for (size_t n = 0; n < p->t.count; n++) {
        if (p->items[n].state != ITEM_FOUND) continue;
        enter(&p->items[n], ITEM_CHECK);
        count++;
    }
    return count > 0;
}

/* Values are sent only now: none is refused. */
static void send_values(struct op_init *p)
{
    for (size_t n = 0; n < p->t.count && !p->op.result.finished; n++) {
        struct item *i = &p->items[n];
        struct wire_init_result r = {.key = i->id, .next_step = i->next_step, .outcome = INIT_EXISTED};
        if (i->state == ITEM_FOUND) item_done(i, &r);
    }
    op_want(&p->op, ROLE_DATA);
}

/* All of the present checks are answered: fail, wait for rank 0, or send. */
static void checked(struct op_init *p)
{
    struct error e;
    size_t waiting = 0;

    if (p->failed.status != STATUS_OK) {
        op_fail(&p->op, &p->failed);
        return;
    }
    op_conds_clear(&p->op);
    for (size_t n = 0; n < p->t.count; n++) {
        if (p->items[n].state != ITEM_WAIT) continue;
        struct cond c = {.kind = WAIT_INIT, .name = p->op.held[n]->name};
        if (op_cond(&p->op, &c, &e) != STATUS_OK) {
            op_fail(&p->op, &e);
            return;
        }
        waiting++;
    }
    if (waiting > 0) {
        op_wait_for(&p->op, waiting);
        return;
    }
    bool looked = p->looking;
    p->looking = false;
    if (!looked || !take_over(p)) send_values(p);
}

static void init_waited(struct op *op)
{
    struct op_init *p = init_op(op);

    for (size_t n = 0; n < p->t.count; n++)
        if (p->items[n].state == ITEM_WAIT || p->items[n].state == ITEM_FOUND) enter(&p->items[n], ITEM_CHECK);
}

static bool checks_are_over(const struct op_init *p) { return p->open_checks == 0 && list_empty(&p->checks); }

static void take_check(struct item *i, const struct wire_init_result *r)
{
    switch (r->outcome) {
    case INIT_EXISTED:
    case INIT_CREATED:
        i->id = r->key;
        i->next_step = r->next_step;
        enter(i, ITEM_FOUND);
        break;
    case INIT_WAIT: enter(i, ITEM_WAIT); break;
    default: enter(i, ITEM_VALUE); break;
    }
}

static void item_again(struct item *i, uint32_t ms)
{
    i->sent = i->accepted = 0;
    i->restart = false;
    enter(i, ms > 0 ? ITEM_LATER : ITEM_VALUE);
    if (ms > 0) op_wake_at(&i->init->op, i->init->op.engine->now + ms);
}

static void take_value(struct item *i, const struct call *c, const struct wire_init_result *r)
{
    struct error e;

    i->accepted += c->size;
    if (i->state == ITEM_DONE) return;
    if (r->outcome == INIT_CREATED || r->outcome == INIT_EXISTED) {
        item_done(i, r);
    } else if (i->restart) {
        if (i->open == 0) item_again(i, RETRY_MS);
    } else if (r->outcome == INIT_WAIT) {
        /* Another worker came into rank 0's place meanwhile. */
        i->sent = i->accepted = 0;
        enter(i, ITEM_CHECK);
    } else if (i->open == 0 && (c->size == 0 || i->accepted >= i->size)) {
        error_set(&e, REASON_INTERNAL, "a first value that was sent whole was not taken");
        if (i->renewed++ < RENEWALS_MAX) item_again(i, 0);
        else item_failed(i, &e);
    }
}

static void value_refused(struct item *i, const struct error *e)
{
    uint32_t ms = e->retry_ms << (i->refused < 4 ? i->refused : 4);

    if (i->state == ITEM_DONE) return;
    if (e->retry_ms == 0 && !i->restart) {
        item_failed(i, e);
        return;
    }
    op_hint(&i->init->op, e);
    i->refused++;
    i->restart = true;
    enter(i, ITEM_FLYING);
    if (i->open == 0) item_again(i, ms < REFUSED_MAX_MS ? ms : REFUSED_MAX_MS);
}

static void init_wake(struct op *op)
{
    struct op_init *p = init_op(op);

    for (size_t n = 0; n < p->t.count; n++)
        if (p->items[n].state == ITEM_LATER) enter(&p->items[n], ITEM_VALUE);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static bool is_check(const struct call *c) { return (c->flags & WIRE_FLAG_CHECK) != 0; }

static void read_faults(struct op_init *p, struct call *c, const struct incoming *in, const struct wire_init_done *done)
{
    struct answer_reader a = answer_of(in);
    struct error e;
    uint32_t index;

    reader_take(&a.results, (uint64_t)done->count * wire_init_result_size);
    for (uint32_t n = 0; n < done->faults && answer_next_fault(&a, &index, &e); n++) {
        if (index >= c->item_count || c->items[index] == NULL || p->op.result.finished) continue;
        struct item *i = c->items[index];
        if (is_check(c)) note_failure(p, &e);
        else value_refused(i, &e);
        c->items[index] = NULL;
    }
}

static void read_results(struct op_init *p, struct call *c, const struct incoming *in, uint32_t count)
{
    struct answer_reader a = answer_of(in);
    struct wire_init_result r;

    for (uint32_t n = 0; n < count && n < c->item_count; n++) {
        wire_get_init_result(&a.results, &r);
        if (c->items[n] == NULL || a.results.failed || p->op.result.finished) continue;
        struct item *i = c->items[n];
        if (is_check(c)) take_check(i, &r);
        else take_value(i, c, &r);
    }
}

static void init_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_init *p = init_op(op);
    struct reader fixed = reader_of(in != NULL ? in->fixed : bytes_of("", 0));
    struct wire_init_done done;

    p->open_checks -= is_check(c);
    for (size_t n = 0; n < c->item_count; n++) ((struct item *)c->items[n])->open--;
    if (op->result.finished) return;
    if (why != NULL) {
        op_fail(op, why);
        return;
    }
    wire_get_init_done(&fixed, &done);
    read_faults(p, c, in, &done);
    read_results(p, c, in, done.count);
    if (!op->result.finished && is_check(c) && checks_are_over(p)) checked(p);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static uint64_t part_size(const struct op_init *p)
{
    uint64_t most = p->op.engine->session.part_max;

    return most < PART_SIZE ? most : PART_SIZE;
}

static struct call *frame_new(struct op_init *p, size_t entries, uint16_t flags)
{
    struct engine *en = p->op.engine;
    struct call *c = call_new(&p->op, WIRE_Init);
    size_t told = entries < FAULT_TEXTS_MAX ? entries : FAULT_TEXTS_MAX;

    if (c == NULL) return NULL;
    c->flags = flags;
    wire_put_init(&c->fixed, &(struct wire_init){
        .store = en->store, .count = (uint32_t)entries, .call = p->looking ? 0 : p->call,
        .on_reinit = en->options->on_reinit,
    });
    c->answer_size = entries * (wire_init_result_size + wire_fault_size) + told * 200;
    if (!call_items(c, entries)) c->desc.failed = true;
    return c;
}

static size_t entry_size(const struct op_init *p, const struct item *i)
{
    return wire_init_entry_size + (size_t)p->t.values[i->index].ndim * 8 + p->op.held[i->index]->name.text.size + 8;
}

static void put_dim(struct buf *b, uint64_t dim)
{
    uint8_t bytes[8];

    for (unsigned n = 0; n < 8; n++) bytes[n] = (uint8_t)(dim >> (8 * n));
    buf_add(b, bytes, sizeof bytes);
}

static void put_entry(struct call *c, struct item *i, uint64_t offset, uint64_t size)
{
    const struct paramd_tensor *t = &i->init->t.values[i->index];
    const struct key_name *name = &i->init->op.held[i->index]->name;

    wire_put_init_entry(&c->desc, &(struct wire_init_entry){
        .number = name->number, .offset = offset, .size = size, .total = i->size,
        .name_size = (uint16_t)name->text.size, .key_type = name->type, .dtype = (uint8_t)tensor_dtype(t),
        .ndim = (uint8_t)t->ndim, .storage = STORAGE_DENSE,
    });
    for (int d = 0; d < t->ndim; d++) put_dim(&c->desc, (uint64_t)t->shape[d]);
    buf_add(&c->desc, name->text.at, name->text.size);
    buf_pad(&c->desc, 8);
    c->items[c->item_count++] = i;
    i->open++;
}

/* How many of a list go into one frame. */
static size_t batch_count(const struct op_init *p, const struct list *from, bool values)
{
    uint64_t size = 0, desc = 0;
    size_t count = 0;

    LIST_EACH(struct item, i, node, from) {
        if (count == FRAME_ENTRIES || (values && i->size > part_size(p))) break;
        size += values ? i->size : 0;
        desc += entry_size(p, i);
        if (count > 0 && (size > part_size(p) || desc > FRAME_DESC)) break;
        count++;
    }
    return count;
}

static struct call *check(struct op_init *p)
{
    size_t count = batch_count(p, &p->checks, false);
    struct call *c = frame_new(p, count, WIRE_FLAG_CHECK);

    if (c == NULL) return NULL;
    p->open_checks++;
    for (size_t n = 0; n < count && !c->desc.failed; n++) {
        struct item *i = LIST_FIRST(struct item, node, &p->checks);
        put_entry(c, i, 0, 0);
        enter(i, ITEM_FLYING);
    }
    return c;
}

/* In host memory. NULL: it could not be brought there, and the operation has failed. */
static const void *value_of(struct item *i)
{
    struct op *op = &i->init->op;
    const struct paramd_tensor *t = &i->init->t.values[i->index];
    struct error e;

    if (!tensor_on_gpu(t) || i->size == 0) return t->data;
    if (i->fetched == NULL && tensor_fetch(&op->engine->gpu, t, i->size, &i->fetched, &e) != STATUS_OK) op_fail(op, &e);
    return i->fetched;
}

static struct call *part(struct op_init *p, struct item *i)
{
    uint64_t left = i->size - i->sent, most = part_size(p), size = left < most ? left : most;
    struct call *c = frame_new(p, 1, 0);

    if (c == NULL || c->desc.failed) return c;
    c->offset = i->sent;
    c->size = c->body_size = size;
    put_entry(c, i, i->sent, size);
    const uint8_t *from = value_of(i);
    if (from == NULL || !call_segments(c, 1)) {
        c->desc.failed = true;
        return c;
    }
    call_segment(c, from + i->sent, size, &p->op);
    i->sent += size;
    if (i->sent == i->size) enter(i, ITEM_FLYING);
    return c;
}

static struct call *batch(struct op_init *p)
{
    size_t count = batch_count(p, &p->values, true);
    struct piece here[PIECES_HERE], *pieces = count <= PIECES_HERE ? here : mem_array(count, sizeof *pieces);
    struct call *c = frame_new(p, count, 0);

    if (c != NULL && pieces == NULL) c->desc.failed = true;
    if (c == NULL || c->desc.failed) goto out;
    for (size_t n = 0; n < count; n++) {
        struct item *i = LIST_FIRST(struct item, node, &p->values);
        put_entry(c, i, 0, i->size);
        i->accepted = 0;
        pieces[n] = (struct piece){value_of(i), i->size};
        enter(i, ITEM_FLYING);
    }
    if (op_result(&p->op)->finished || !call_lay_out(c, pieces, count, &p->op)) c->desc.failed = true;
out:
    if (pieces != here) mem_free(pieces);
    return c;
}

static struct call *init_next(struct op *op, enum role role)
{
    struct op_init *p = init_op(op);

    if (role != ROLE_DATA) return NULL;
    if (!list_empty(&p->checks)) return check(p);
    if (op->waiting || !checks_are_over(p) || list_empty(&p->values)) return NULL;
    struct item *i = LIST_FIRST(struct item, node, &p->values);
    return i->size > part_size(p) ? part(p, i) : batch(p);
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

/* The output must fit the value that its key is made with. */
static enum status check_output(struct op_init *p, const struct paramd_key *key, const struct paramd_tensor *output,
                                struct error *e)
{
    struct key_name n;
    char name[80];
    uint64_t size;
    size_t index;
    bool is_new;
    enum status s = tensor_check(&p->op.engine->gpu, output, key, &size, e);

    if (s == STATUS_OK) s = op_hold(&p->op, key, &index, &is_new, e);
    if (s == STATUS_OK) s = key_name_of(key, &n, e);
    if (s != STATUS_OK) return s;
    key_name_text(&n, name, sizeof name);
    if (is_new) return error_set(e, REASON_BAD_ARGUMENT, "key %s has an output, but no value", name);
    if (tensors_match(output, &p->t.values[index])) return STATUS_OK;
    return error_set(e, REASON_SHAPE_MISMATCH, "key %s: the output has not the dtype and shape of the value", name);
}

static enum status check_call(struct op_init *p, struct error *e)
{
    p->items = mem_array(p->t.count, sizeof *p->items);
    if (p->items == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for %zu keys", p->t.count);
    for (size_t n = 0; n < p->t.count; n++) {
        struct item *i = &p->items[n];
        bool is_new;
        enum status s = tensor_check(&p->op.engine->gpu, &p->t.values[n], &p->t.keys[n], &i->size, e);
        if (s == STATUS_OK) s = op_hold(&p->op, &p->t.keys[n], &i->index, &is_new, e);
        if (s != STATUS_OK) return s;
        if (!is_new)
            return error_set(e, REASON_BAD_ARGUMENT, "a key occurs twice: init has one value for each key");
        i->init = p;
    }
    return STATUS_OK;
}

static void init_free(struct op *op)
{
    struct op_init *p = init_op(op);

    for (size_t n = 0; p->items != NULL && n < p->t.count; n++) mem_free(p->items[n].fetched);
    mem_free(p->items);
}

static void init_what(const struct op *op, struct buf *out)
{
    const struct op_init *p = (const struct op_init *)(const void *)op;
    size_t told = 0;

    for (size_t n = 0; n < p->t.count && told < 5; n++) {
        char name[80];
        if (p->items[n].state == ITEM_DONE) continue;
        key_name_text(&op->held[n]->name, name, sizeof name);
        buf_format(out, "%s%s", told++ > 0 ? ", " : " of key ", name);
    }
    if (p->left > told) buf_format(out, " and %zu more", p->left - told);
}

static const struct op_ops init_ops = {
    .name = "init", .need = NEED_MEMBER, .size = sizeof(struct op_init), .waited = init_waited,
    .next = init_next, .answer = init_answer,
    .wake = init_wake, .free = init_free, .what = init_what,
};

enum status op_init_for(struct engine *en, const struct tensors *t, const struct tensors *outputs, struct op **out,
                        struct error *e)
{
    struct op *op;
    enum status s = op_new(en, &init_ops, false, &op, e);

    if (s != STATUS_OK) return s;
    struct op_init *p = init_op(op);
    list_init(&p->checks);
    list_init(&p->values);
    p->t = *t;
    /* Unlike any call of an earlier start of this worker. */
    p->call = (uint64_t)en->session.epoch << 32 | ++en->inits;
    s = check_call(p, e);
    for (size_t n = 0; s == STATUS_OK && n < outputs->count; n++)
        s = check_output(p, &outputs->keys[n], &outputs->values[n], e);
    if (s != STATUS_OK) {
        op_abandon(op);
        return s;
    }
    p->left = t->count;
    for (size_t n = 0; n < t->count; n++) enter(&p->items[n], ITEM_CHECK);
    p->looking = batch_count(p, &p->checks, false) < t->count;
    if (t->count == 0) op_finish(op);
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}

enum status op_init(struct engine *en, const struct tensors *t, struct op **out, struct error *e)
{
    static const struct tensors nothing;

    return op_init_for(en, t, &nothing, out, e);
}
