/* A call on a plane, announced and awaited; and waiting for what the daemon says of an epoch. What is then done between
 * GPUs is no business of the engine's: see seat.c. */
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <assert.h>
#include <stdlib.h>

struct item {
    struct key *key;
    size_t index;                /* in the caller's arrays */
    uint64_t step;               /* as it was sent */
};

struct op_plane {
    struct op op;
    struct plane_call call;
    uint32_t kind;               /* of what it waits for */
    struct item *items;          /* in the order of the collectives; NULL: it only waits */
    bool asked, announced;
};

static struct op_plane *plane_op(struct op *op) { return (struct op_plane *)(void *)op; }

static void plane_waited(struct op *op) { op_finish(op); }

static enum status wait_for_call(struct op *op, struct error *e)
{
    const struct op_plane *p = plane_op(op);
    enum status s = op_cond(op, &(struct cond){.kind = p->kind, .id = p->call.epoch, .number = p->call.number}, e);

    if (s == STATUS_OK) op_wait_for(op, 1);
    return s;
}

static struct call *plane_next(struct op *op, enum role role)
{
    struct op_plane *p = plane_op(op);

    if (role != ROLE_CONTROL || p->items == NULL || p->asked || op->resolving) return NULL;
    p->asked = true;
    struct call *c = call_new(op, WIRE_PlaneCall);
    if (c == NULL) return NULL;
    buf_format(&c->body, "{\"store\":%u,\"epoch\":%llu,\"call\":%llu,\"pull\":%s,\"keys\":[", op->engine->store,
               (unsigned long long)p->call.epoch, (unsigned long long)p->call.number,
               p->call.outputs != NULL ? "true" : "false");
    for (size_t i = 0; i < op->held_count; i++) {
        p->items[i].step = p->items[i].key->next_step;
        buf_format(&c->body, "%s[%llu,%llu]", i > 0 ? "," : "", (unsigned long long)p->items[i].key->id,
                   (unsigned long long)p->items[i].step);
    }
    buf_text(&c->body, "]}");
    c->body_size = c->body.size;
    return c;
}

static void plane_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_plane *p = plane_op(op);
    struct error e;

    (void)c;
    /* Whether a lost one was heard is not known. */
    p->announced = why == NULL || in == NULL;
    if (op->result.finished) return;
    if (why != NULL && why->reason == REASON_STEP_ORDER) op_plane_forget(op);
    if (why != NULL) op_fail(op, why);
    else if (wait_for_call(op, &e) != STATUS_OK) op_fail(op, &e);
}

static int by_order(const void *a, const void *b)
{
    const struct key *x = ((const struct item *)a)->key, *y = ((const struct item *)b)->key;

    return x->id < y->id ? -1 : x->id > y->id;
}

/* All workers sort alike, so the order in which they name the keys does not matter. */
static void plane_resolved(struct op *op)
{
    struct op_plane *p = plane_op(op);
    struct error e;

    for (size_t i = 0; i < op->held_count; i++) {
        const struct paramd_tensor *out = p->call.outputs;
        enum status s = tensor_fits(&p->call.tensors.values[i], op->held[i], &e);
        if (s == STATUS_OK && out != NULL) s = tensor_fits(&out[i], op->held[i], &e);
        if (s != STATUS_OK) {
            op_fail(op, &e);
            return;
        }
        p->items[i] = (struct item){.key = op->held[i], .index = i};
    }
    qsort(p->items, op->held_count, sizeof *p->items, by_order);
    op_want(op, ROLE_CONTROL);
}

static void plane_free(struct op *op) { mem_free(plane_op(op)->items); }

static void plane_what(const struct op *op, struct buf *out)
{
    const struct op_plane *p = (const struct op_plane *)(const void *)op;

    buf_format(out, " call %llu of epoch %llu", (unsigned long long)p->call.number, (unsigned long long)p->call.epoch);
}

static const struct op_ops plane_ops = {
    .name = "plane", .need = NEED_MEMBER, .size = sizeof(struct op_plane), .resolved = plane_resolved,
    .waited = plane_waited, .next = plane_next, .answer = plane_answer, .free = plane_free, .what = plane_what,
};

/* NCCL is told bare addresses, so what lies elsewhere must not come to it. */
static enum status check_tensor(struct op *op, const struct paramd_tensor *t, const struct paramd_key *k, struct error *e)
{
    uint64_t size;

    if (tensor_on_gpu(t)) return tensor_check(&op->engine->gpu, t, k, &size, e);
    return error_set(e, REASON_BAD_ARGUMENT, "what is pushed and pulled on a plane lies on its GPU: add PARAMD_CUDA to the "
                     "dtype, or push the ordinary way");
}

static enum status hold_keys(struct op *op, const struct plane_call *c, struct error *e)
{
    const struct tensors *t = &c->tensors;
    size_t index;
    bool is_new;

    for (size_t n = 0; n < t->count; n++) {
        enum status s = check_tensor(op, &t->values[n], &t->keys[n], e);
        if (s == STATUS_OK && c->outputs != NULL) s = check_tensor(op, &c->outputs[n], &t->keys[n], e);
        if (s == STATUS_OK) s = op_hold(op, &t->keys[n], &index, &is_new, e);
        if (s != STATUS_OK) return s;
        if (!is_new) return error_set(e, REASON_BAD_ARGUMENT, "a key is named twice in one call on a plane: sum first");
    }
    return STATUS_OK;
}

enum status op_plane_call(struct engine *en, const struct plane_call *c, struct op **out, struct error *e)
{
    struct op *op;

    if (c->tensors.count < 1 || c->tensors.count > PLANE_KEYS_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "a call on a plane is of 1 to %d keys, not %zu", PLANE_KEYS_MAX,
                         c->tensors.count);
    enum status s = op_new(en, &plane_ops, false, &op, e);
    if (s != STATUS_OK) return s;
    plane_op(op)->call = *c;
    plane_op(op)->kind = WAIT_PLANE;
    plane_op(op)->items = mem_array(c->tensors.count, sizeof *plane_op(op)->items);
    if (plane_op(op)->items == NULL) s = error_set(e, REASON_NO_MEMORY, "no memory for %zu keys", c->tensors.count);
    else s = hold_keys(op, c, e);
    if (s != STATUS_OK) {
        op_abandon(op);
        return s;
    }
    op_resolve(op);
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}

enum status op_plane_wait(struct engine *en, enum wait_kind kind, uint64_t epoch, uint64_t number, struct op **out,
                          struct error *e)
{
    struct op *op;
    enum status s = op_new(en, &plane_ops, false, &op, e);

    if (s != STATUS_OK) return s;
    plane_op(op)->kind = kind;
    plane_op(op)->call = (struct plane_call){.epoch = epoch, .number = number};
    s = wait_for_call(op, e);
    if (s != STATUS_OK) {
        op_abandon(op);
        return s;
    }
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}

size_t op_plane_at(const struct op *op, size_t i)
{
    assert(i < op->held_count);
    return ((const struct op_plane *)(const void *)op)->items[i].index;
}

bool op_plane_announced(const struct op *op) { return ((const struct op_plane *)(const void *)op)->announced; }

void op_plane_counted(struct op *op)
{
    for (size_t i = 0; i < op->held_count; i++) {
        const struct item *x = &plane_op(op)->items[i];
        if (x->key->recorded < x->step) x->key->recorded = x->step;
        if (x->key->next_step <= x->step) x->key->next_step = x->step + 1;
    }
}

void op_plane_forget(struct op *op)
{
    for (size_t i = 0; i < op->held_count; i++) op->held[i]->uncertain = true;
}
