#include "api/client/documents.h"
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    DESCRIBE_KEYS = 1000,        /* asked for in one request */
    DESCRIBE_TEXT = 256 << 10,
    DESCRIBE_ANSWER = 200,       /* bytes about one key, roughly */
    WAIT_CONDS = 4096,           /* in one request */
    WAIT_DESC = 512 << 10,       /* bytes of it, which names make long */
    TICKETS_MAX = 8              /* of one key, the youngest ones; the daemon tells older failures with them */
};

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* A handle that only looks has no steps and no place in a round. */
static enum status may_look(const struct engine *en, const struct op_ops *ops, struct error *e)
{
    if (en->options->join || ops->need == NEED_NOTHING) return STATUS_OK;
    if (ops->need == NEED_MEMBER)
        return error_set(e, REASON_NOT_JOINED, "%s is for workers of the store, and this handle only looks: open one "
                         "without \"join\": false", ops->name);
    if (en->store != 0) return STATUS_OK;
    return error_set(e, REASON_NO_STORE, "%s needs a store, and this handle was opened without one: name it as "
                     "\"store\"", ops->name);
}

static enum status may_begin(const struct engine *en, bool early, struct error *e)
{
    if (en->lost.status != STATUS_OK) {
        if (e != NULL) *e = en->lost;
        return en->lost.status;
    }
    if (en->closed) return error_set(e, REASON_CLOSED, "this worker has left the store: open a new handle");
    if (!early && !en->joined)
        return error_set(e, REASON_NOT_JOINED, "the store is not open yet: wait for its operation to finish first");
    return STATUS_OK;
}

enum status op_new(struct engine *en, const struct op_ops *ops, bool early, struct op **out, struct error *e)
{
    enum status s = may_begin(en, early, e);

    if (s == STATUS_OK) s = may_look(en, ops, e);
    if (s != STATUS_OK) return s;
    struct op *op = mem_zero(ops->size);
    if (op == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for an operation");
    op->ops = ops;
    op->engine = en;
    op->begun = en->now;
    op->wake_at = UINT64_MAX;
    op->deadline = en->now + en->round_ms + en->options->connect_ms + DEADLINE_SLACK_MS;
    engine_due(en, op->deadline);
    list_append(&en->ops, &op->node);
    *out = op;
    return STATUS_OK;
}

static void op_free(struct op *op)
{
    if (op->ops->free != NULL) op->ops->free(op);
    for (size_t i = 0; i < op->held_count; i++) keys_release(op->engine->keys, op->held[i]);
    mem_free(op->held);
    mem_free(op->unknown);
    mem_free(op->conds);
    mem_free(op);
}

static void unlist(struct op *op)
{
    list_remove(&op->node);
    for (unsigned r = 0; r < ROLE_COUNT; r++) list_remove(&op->ready[r]);
}

void op_abandon(struct op *op)
{
    if (op == NULL) return;
    assert(op->calls == 0);
    unlist(op);
    if (op->ops->ended != NULL && !op->result.finished) op->ops->ended(op);
    op_free(op);
}

static void end(struct op *op, const struct error *e)
{
    if (op->result.finished) return;
    if (e != NULL) op->result.error = *e;
    op->result.finished = true;
    op->engine->finished++;
    unlist(op);
    op->calls++; /* holds it while its calls are ended */
    if (op->ops->ended != NULL) op->ops->ended(op);
    if (op->calls > 1) engine_detach(op->engine, op);
    op_call_over(op);
}

void op_finish(struct op *op) { end(op, NULL); }
void op_fail(struct op *op, const struct error *e) { end(op, e); }

void op_call_over(struct op *op)
{
    if (--op->calls == 0 && op->released && op->result.finished) op_free(op);
}

void op_release(struct op *op)
{
    struct error e;

    if (op == NULL) return;
    error_set(&e, REASON_CANCELLED, "%s was cancelled", op->ops->name);
    end(op, &e);
    op->released = true;
    if (op->calls == 0) op_free(op);
}

/* A Wait under way may hang for longer than there is time now: another one is sent that is answered before. */
void op_set_deadline(struct op *op, uint32_t ms)
{
    uint64_t deadline = op->engine->now + ms;

    if (op->waiting && deadline < op->deadline) {
        op->wait_call = NULL;
        op_want(op, ROLE_WAIT);
    }
    op->deadline = deadline;
    engine_due(op->engine, op->deadline);
}

const struct op_result *op_result(const struct op *op) { return &op->result; }
uint64_t op_deadline(const struct op *op) { return op->deadline; }

/* Behind those of the same priority; mostly that is the end. */
void op_want(struct op *op, enum role role)
{
    struct list *ready = &op->engine->ready[role];
    struct list_node *at = &ready->head;

    if (op->result.finished || list_linked(&op->ready[role])) return;
    while (at->prev != &ready->head && CONTAINER_OF(at->prev, struct op, ready[role])->priority < op->priority)
        at = at->prev;
    list_insert_before(at, &op->ready[role]);
    op->engine->pump_again = true; /* a lane that was looked at already may be the one */
}

void op_wake_at(struct op *op, uint64_t ms)
{
    if (ms < op->wake_at) op->wake_at = ms;
    engine_due(op->engine, ms);
}

void op_hint(struct op *op, const struct error *e) { op->hint = *e; }

/* ---- keys ------------------------------------------------------------------------------------------------------- */

/* While the joining is done again nothing is: the steps will be others. */
bool key_is_known(const struct engine *en, const struct key *k)
{
    return k->known == en->joining && !k->uncertain && en->rejoin == NULL;
}

enum status op_hold(struct op *op, const struct paramd_key *name, size_t *index, bool *is_new, struct error *e)
{
    struct engine *en = op->engine;
    struct key_name n;
    struct key *k;

    if (op->stamp == 0) op->stamp = ++en->stamp;
    enum status s = key_name_of(name, &n, e);
    if (s == STATUS_OK) s = mem_grow((void **)&op->held, &op->held_capacity, op->held_count + 1, sizeof *op->held, e);
    if (s == STATUS_OK) s = keys_hold(en->keys, &n, &k, e);
    if (s != STATUS_OK) return s;

    *is_new = k->stamp != op->stamp;
    if (*is_new) {
        k->stamp = op->stamp;
        k->slot = op->held_count;
        op->held[op->held_count++] = k;
    } else {
        keys_release(en->keys, k);
    }
    *index = k->slot;
    return STATUS_OK;
}

enum status op_hold_found(struct op *op, struct key *k, struct error *e)
{
    enum status s = mem_grow((void **)&op->held, &op->held_capacity, op->held_count + 1, sizeof *op->held, e);

    if (s != STATUS_OK) return s;
    k->uses++;
    op->held[op->held_count++] = k;
    return STATUS_OK;
}

void op_resolve(struct op *op)
{
    struct engine *en = op->engine;
    struct error e;

    op->unknown_count = 0;
    for (size_t i = 0; i < op->held_count; i++) {
        if (key_is_known(en, op->held[i])) continue;
        if (mem_grow((void **)&op->unknown, &op->unknown_capacity, op->unknown_count + 1, sizeof *op->unknown, &e) !=
            STATUS_OK) {
            op_fail(op, &e);
            return;
        }
        op->unknown[op->unknown_count++] = op->held[i];
    }
    op->asked = op->told = 0;
    op->resolving = op->unknown_count > 0;
    if (op->resolving) op_want(op, ROLE_CONTROL);
    else op->ops->resolved(op);
}

static void put_key(struct buf *b, const struct key_name *n)
{
    if (n->type == KEY_INT) buf_format(b, "%lld", (long long)n->number);
    else doc_put_text(b, n->text);
}

static struct call *describe(struct op *op)
{
    /* While the joining is under way, what the daemon would say now is out of date when it arrives. */
    if (op->engine->rejoin != NULL || op->asked == op->unknown_count) return NULL;
    struct call *c = call_new(op, WIRE_Describe);
    if (c == NULL) return NULL;
    size_t first = op->asked;

    c->kind = CALL_DESCRIBE;
    c->offset = first;
    buf_format(&c->body, "{\"store\":%u,\"keys\":[", op->engine->store);
    while (op->asked < op->unknown_count && op->asked - first < DESCRIBE_KEYS && c->body.size < DESCRIBE_TEXT) {
        if (op->asked > first) buf_text(&c->body, ",");
        put_key(&c->body, &op->unknown[op->asked++]->name);
    }
    buf_text(&c->body, "]}");
    c->body_size = c->body.size;
    c->item_count = op->asked - first;
    c->answer_size = c->item_count * DESCRIBE_ANSWER;
    return c;
}

static enum status learn_shape(const json_t *dims, int64_t shape[DIMS_MAX], unsigned *ndim)
{
    *ndim = (unsigned)json_array_size(dims);
    if (!json_is_array(dims) || *ndim > DIMS_MAX) return STATUS_INTERNAL;
    for (unsigned i = 0; i < *ndim; i++) shape[i] = json_integer_value(json_array_get(dims, i));
    return STATUS_OK;
}

/* No step is told to a worker that was found dead meanwhile: it has to join again. */
static bool is_outside(const struct engine *en, const json_t *item)
{
    return engine_joined(en) && json_is_object(item) && doc_u64(item, "next_step", 1) == 0;
}

static enum status learn(struct engine *en, struct key *k, const json_t *item, struct error *e)
{
    char name[80];
    int64_t shape[DIMS_MAX] = {0};
    struct key_facts f = {.shape = shape, .id = doc_u64(item, "id", 0), 
                          .next_step = doc_u64(item, "next_step", 1), .recorded = doc_u64(item, "recorded", 0),
                          .tells_recorded = json_object_get(item, "recorded") != NULL};

    if (is_outside(en, item)) {
        k->known = 0;
        return STATUS_OK;
    }
    key_name_text(&k->name, name, sizeof name);
    if (item == NULL || json_is_null(item)) {
        k->known = 0;
        return error_set(e, REASON_NO_KEY, "key %s was not initialised: call init with its first value", name);
    }
    if (!en->options->join && f.next_step == 0) f.next_step = 1; /* it has none, and pushes nothing */
    if (f.id == 0 || f.next_step == 0 || !dtype_parse(bytes_text(doc_text(item, "dtype")), &f.dtype) ||
        learn_shape(json_object_get(item, "shape"), shape, &f.ndim) != STATUS_OK)
        return error_set(e, REASON_INTERNAL, "the daemon's description of key %s cannot be read", name);
    key_learn(k, &f, en->joining);
    return STATUS_OK;
}

/* The daemon has found this worker dead: what it was asked is asked again when it has joined. false: it cannot, and the
 * operation has ended. */
static bool begin_again(struct op *op)
{
    struct engine *en = op->engine;
    struct error e;

    op->outside = false;
    error_set(&e, REASON_NOT_JOINED, "this worker was found dead and is joining again");
    op_hint(op, &e);
    engine_rejoin(en);
    if (!en->closed && en->lost.status == STATUS_OK) return true;
    op_fail(op, &e);
    return false;
}

static void described(struct op *op, const struct call *c, const struct incoming *in)
{
    struct error e;
    json_t *doc;
    struct bytes text = bytes_of(in->body, in->body != NULL ? in->header.body_size : 0);
    enum status s = doc_read(text, &doc, &e);

    if (s == STATUS_OK) {
        const json_t *items = json_object_get(doc, "items");
        for (size_t i = 0; s == STATUS_OK && i < c->item_count; i++) {
            s = learn(op->engine, op->unknown[c->offset + i], json_array_get(items, i), &e);
            op->outside |= is_outside(op->engine, json_array_get(items, i));
        }
        json_decref(doc);
    }
    op->told += c->item_count;
    if (s != STATUS_OK) {
        op_fail(op, &e);
    } else if (op->told == op->unknown_count && op->outside) {
        if (begin_again(op)) op_resolve(op);
    } else if (op->told == op->unknown_count) {
        op->resolving = false;
        op->ops->resolved(op);
    }
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

enum status op_cond(struct op *op, const struct cond *c, struct error *e)
{
    enum status s = mem_grow((void **)&op->conds, &op->cond_capacity, op->cond_count + 1, sizeof *op->conds, e);

    if (s == STATUS_OK) op->conds[op->cond_count++] = *c;
    return s;
}

enum status op_cond_pushes(struct op *op, struct key *k, struct error *e)
{
    enum status s = STATUS_OK;
    uint64_t first = k->applied + 1;

    if (k->id == 0) return STATUS_OK;
    if (k->recorded > TICKETS_MAX && first < k->recorded - TICKETS_MAX + 1) first = k->recorded - TICKETS_MAX + 1;
    for (uint64_t step = first; s == STATUS_OK && step <= k->recorded; step++)
        s = op_cond(op, &(struct cond){.kind = WAIT_TICKET, .key = k, .id = k->id, .number = step}, e);
    return s;
}

void op_conds_clear(struct op *op) { op->cond_count = op->cond_done = 0; }

void op_wait_for(struct op *op, size_t want)
{
    op->cond_want = want;
    op->waiting = op->cond_done < want;
    if (op->waiting) op_want(op, ROLE_WAIT);
    else op->ops->waited(op);
}

/* Half of what is left, so that the daemon's sentence about who is missing comes before the deadline. */
static uint32_t wait_ms(const struct op *op)
{
    uint64_t half = op->deadline > op->engine->now ? (op->deadline - op->engine->now) / 2 : 0;

    return half < 1 ? 1 : half < WAIT_MAX_MS ? (uint32_t)half : WAIT_MAX_MS;
}

static void put_cond(struct call *c, const struct engine *en, const struct cond *cond)
{
    wire_put_wait_entry(&c->desc, &(struct wire_wait_entry){
        .kind = cond->kind, .store = en->store, .key = cond->id,
        .number = cond->kind == WAIT_INIT ? (uint64_t)cond->name.number : cond->number,
        .name_size = (uint16_t)cond->name.text.size, .key_type = cond->name.type,
    });
    buf_add(&c->desc, cond->name.text.at, cond->name.text.size);
    buf_pad(&c->desc, 8);
}

static struct call *ask_wait(struct op *op)
{
    if (op->wait_call != NULL || op->engine->rejoin != NULL) return NULL;
    struct call *c = call_new(op, WIRE_Wait);
    if (c == NULL) return NULL;
    c->kind = CALL_WAIT;
    if (!call_items(c, op->cond_count < WAIT_CONDS ? op->cond_count : WAIT_CONDS)) {
        c->desc.failed = true;
        return c;
    }
    for (size_t i = 0; i < op->cond_count && c->item_count < WAIT_CONDS && c->desc.size < WAIT_DESC; i++) {
        struct cond *cond = &op->conds[op->wait_from++ % op->cond_count];
        if (cond->state != WAIT_PENDING) continue;
        put_cond(c, op->engine, cond);
        c->items[c->item_count++] = cond;
    }
    size_t want = op->cond_want - op->cond_done;
    wire_put_wait(&c->fixed, &(struct wire_wait){
        .count = (uint32_t)c->item_count, .time_ms = wait_ms(op),
        .want = (uint32_t)(want < c->item_count ? want : c->item_count),
    });
    c->answer_size = c->item_count * (wire_wait_result_size + wire_fault_size) +
                     (c->item_count < FAULT_TEXTS_MAX ? c->item_count : FAULT_TEXTS_MAX) * 256;
    op->wait_call = c;
    return c;
}

/* A ticket is decided, one way or the other: it is not asked for again. */
static void decide(struct op *op, struct cond *cond, const struct wire_wait_result *r)
{
    if (cond->state != WAIT_PENDING || r->state == WAIT_PENDING) return;
    cond->state = (uint8_t)r->state;
    cond->version = r->version;
    op->cond_done++;
    if (cond->kind == WAIT_TICKET && cond->key->id == cond->id && cond->key->applied < cond->number)
        cond->key->applied = cond->number;
}

/* Whether a condition could not be looked at because the worker was found dead. Then none is decided yet. */
static bool wait_is_outside(const struct op *op, const struct incoming *in, const struct wire_wait_done *done)
{
    struct answer_reader a = answer_of(in);
    struct error e;
    uint32_t index;

    if (!engine_joined(op->engine) || done->faults == 0 ||
        !reader_take(&a.results, (uint64_t)done->count * wire_wait_result_size))
        return false;
    for (uint32_t i = 0; i < done->faults && answer_next_fault(&a, &index, &e); i++)
        if (e.reason == REASON_NOT_JOINED) return true;
    return false;
}

static void read_wait(struct op *op, const struct call *c, const struct incoming *in)
{
    struct reader fixed = reader_of(in->fixed);
    struct answer_reader a = answer_of(in);
    struct wire_wait_done done;
    struct wire_wait_result r;
    struct error e, failed = {0};
    uint32_t index;

    if (c != op->wait_call) return; /* another one was sent instead; the conditions may be others now */
    op->wait_call = NULL;
    wire_get_wait_done(&fixed, &done);
    if (wait_is_outside(op, in, &done)) {
        if (begin_again(op)) op_wait_for(op, op->cond_want);
        return;
    }
    for (uint32_t i = 0; i < done.count && wire_get_wait_result(&a.results, &r); i++)
        if (r.index < c->item_count) decide(op, c->items[r.index], &r);
    for (uint32_t i = 0; i < done.faults && answer_next_fault(&a, &index, &e); i++) {
        if (index >= c->item_count) continue;
        const struct cond *cond = c->items[index];
        if (cond->state != WAIT_FAILED) op_hint(op, &e);
        else if (failed.status == STATUS_OK) failed = e;
    }
    if (failed.status != STATUS_OK) op_fail(op, &failed);
    else op_wait_for(op, op->cond_want);
}

void op_quiet(struct op *op)
{
    if (op->quiet_left > 0 && --op->quiet_left == 0 && !op->result.finished) op->ops->settled(op);
}

/* ---- the steps that all share ------------------------------------------------------------------------------------ */

/* A request could not be written: it ends as one that was lost, with its operation. */
static void unmade(struct op *op, struct call *c)
{
    struct error e;

    error_set(&e, REASON_NO_MEMORY, "no memory for a request of %s", op->ops->name);
    op_fail(op, &e);
    op_step_answer(op, c, NULL, &e);
    call_close(c);
}

struct call *op_step_next(struct op *op, enum role role)
{
    struct call *c = NULL;

    if (role == ROLE_CONTROL && op->resolving) c = describe(op);
    else if (role == ROLE_WAIT && op->waiting) c = ask_wait(op);
    else if (op->ops->next != NULL) c = op->ops->next(op, role);
    if (c == NULL || (!c->fixed.failed && !c->desc.failed && !c->body.failed)) return c;
    unmade(op, c);
    return NULL;
}

void op_step_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    if (c->kind == CALL_OWN) {
        op->ops->answer(op, c, in, why);
    } else if (!op->result.finished) {
        if (why != NULL) op_fail(op, why);
        else if (c->kind == CALL_DESCRIBE) described(op, c, in);
        else read_wait(op, c, in);
    }
}
