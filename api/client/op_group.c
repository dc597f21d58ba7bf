/* Waiting for own pushes, and barriers, which begin with that. */
#include "api/client/documents.h"
#include "api/client/lane.h"
#include "service/base/mem.h"

#include <string.h>

struct op_group {
    struct op op;
    struct quiet *quiets;        /* one for each held key */
    char *barrier;               /* name; NULL: no barrier */
    bool asked, arrived;
};

static struct op_group *group_op(struct op *op) { return (struct op_group *)(void *)op; }

static void group_settled(struct op *op)
{
    struct error e;
    enum status s = STATUS_OK;

    for (size_t k = 0; s == STATUS_OK && k < op->held_count; k++) s = op_cond_pushes(op, op->held[k], &e);
    if (s == STATUS_OK) op_wait_for(op, op->cond_count);
    else op_fail(op, &e);
}

static void group_waited(struct op *op)
{
    struct op_group *g = group_op(op);

    if (g->barrier == NULL || g->arrived) op_finish(op);
    else op_want(op, ROLE_CONTROL);
}

static struct call *group_next(struct op *op, enum role role)
{
    struct op_group *g = group_op(op);

    if (role != ROLE_CONTROL || g->barrier == NULL || g->asked || op->waiting || op->quiet_left > 0) return NULL;
    g->asked = true;
    struct call *c = call_new(op, WIRE_Barrier);
    if (c == NULL) return NULL;
    buf_format(&c->body, "{\"store\":%u,\"name\":", op->engine->store);
    doc_put_text(&c->body, bytes_text(g->barrier));
    buf_text(&c->body, "}");
    c->body_size = c->body.size;
    return c;
}

static void group_answer(struct op *op, struct call *c, const struct incoming *in, const struct error *why)
{
    struct op_group *g = group_op(op);
    struct cond ticket = {.kind = WAIT_BARRIER};
    struct error e;
    json_t *doc = NULL;

    (void)c;
    if (op->result.finished) return;
    enum status s = STATUS_OK;
    if (why != NULL) {
        e = *why;
        s = e.status;
    }
    if (s == STATUS_OK) s = doc_read(bytes_of(in->body, in->body != NULL ? in->header.body_size : 0), &doc, &e);
    if (s == STATUS_OK) {
        ticket.id = doc_u64(doc, "ticket", 0);
        op_conds_clear(op);
        s = op_cond(op, &ticket, &e);
    }
    json_decref(doc);
    g->arrived = true;
    if (s == STATUS_OK) op_wait_for(op, 1);
    else op_fail(op, &e);
}

static void group_ended(struct op *op)
{
    struct op_group *g = group_op(op);

    for (size_t k = 0; g->quiets != NULL && k < op->held_count; k++) list_remove(&g->quiets[k].node);
}

static void group_free(struct op *op)
{
    mem_free(group_op(op)->quiets);
    mem_free(group_op(op)->barrier);
}

static void group_what(const struct op *op, struct buf *out)
{
    const struct op_group *g = (const struct op_group *)(const void *)op;

    if (g->barrier != NULL) buf_format(out, " \"%s\"", g->barrier);
    else buf_format(out, " for pushes of %zu keys", op->held_count);
}

#define GROUP_OPS(word, needs)                                                                              \
    {.name = word, .need = needs, .size = sizeof(struct op_group), .waited = group_waited, .settled = group_settled,       \
     .next = group_next, .answer = group_answer, .ended = group_ended, .free = group_free, .what = group_what}

static const struct op_ops wait_ops = GROUP_OPS("wait", NEED_STORE), barrier_ops = GROUP_OPS("barrier", NEED_MEMBER);

static enum status hold_all(struct op *op, struct error *e)
{
    size_t at = 0;

    for (struct key *k; (k = keys_next(op->engine->keys, &at)) != NULL;) {
        if (list_empty(&k->turns) && k->applied >= k->recorded) continue;
        enum status s = op_hold_found(op, k, e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

static enum status hold_some(struct op *op, size_t count, const struct paramd_key *keys, struct error *e)
{
    size_t index;
    bool is_new;

    for (size_t n = 0; n < count; n++) {
        enum status s = op_hold(op, &keys[n], &index, &is_new, e);
        if (s != STATUS_OK) return s;
    }
    return STATUS_OK;
}

static enum status wait_for_turns(struct op *op, struct error *e)
{
    struct op_group *g = group_op(op);

    g->quiets = mem_array(op->held_count, sizeof *g->quiets);
    if (g->quiets == NULL) return error_set(e, REASON_NO_MEMORY, "no memory to wait for %zu keys", op->held_count);
    for (size_t k = 0; k < op->held_count; k++) {
        g->quiets[k].op = op;
        if (key_quiet_wait(op->held[k], &g->quiets[k])) op->quiet_left++;
    }
    if (op->quiet_left == 0) group_settled(op);
    return STATUS_OK;
}

static enum status begin(struct op *op, size_t count, const struct paramd_key *keys, struct error *e)
{
    enum status s = count > 0 ? hold_some(op, count, keys, e) : hold_all(op, e);

    return s == STATUS_OK ? wait_for_turns(op, e) : s;
}

enum status op_wait(struct engine *en, size_t count, const struct paramd_key *keys, struct op **out, struct error *e)
{
    struct op *op;
    enum status s = op_new(en, &wait_ops, false, &op, e);

    if (s != STATUS_OK) return s;
    s = begin(op, count, keys, e);
    if (s != STATUS_OK) {
        op_abandon(op);
        return s;
    }
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}

static enum status check_name(const char *name, struct error *e)
{
    size_t size = name != NULL ? strlen(name) : 0;

    if (size == 0 || size > BARRIER_NAME_SIZE_MAX || !bytes_is_utf8(bytes_of(name, size)))
        return error_set(e, REASON_BAD_ARGUMENT, "the name of a barrier has 1 to %d bytes of UTF-8",
                         BARRIER_NAME_SIZE_MAX);
    return STATUS_OK;
}

enum status op_barrier(struct engine *en, const char *name, struct op **out, struct error *e)
{
    struct op *op;
    enum status s = check_name(name, e);

    if (s == STATUS_OK) s = op_new(en, &barrier_ops, false, &op, e);
    if (s != STATUS_OK) return s;
    group_op(op)->barrier = mem_text(name, strlen(name));
    if (group_op(op)->barrier == NULL) s = error_set(e, REASON_NO_MEMORY, "no memory for a barrier");
    else s = begin(op, 0, NULL, e);
    if (s != STATUS_OK) {
        op_abandon(op);
        return s;
    }
    engine_pump(en);
    *out = op;
    return STATUS_OK;
}
