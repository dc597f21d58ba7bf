#include "api/client/seat.h"

#include "api/client/documents.h"
#include "api/client/op.h"
#include "gpu/group_nccl.h"
#include "gpu/plugin.h"
#include "service/base/clock.h"
#include "service/base/mem.h"

#include <stdio.h>
#include <string.h>

enum {
    SLICE_MS = 1,                    /* between two looks at the GPU */
    VERDICT_MS = 2 * PLANE_VERDICT_MS    /* the daemon's word on why the group broke here is waited for so long */
};

struct seat {
    struct nccl nccl;
    struct device *device;
    struct queue *queue;
    struct group *group;         /* NULL: not begun */
    uint64_t epoch, call;        /* number of the last call that all announced */
};

/* The abort lets go what waits on the queue. */
void seat_free(struct seat *p)
{
    if (p == NULL) return;
    if (p->group != NULL) {
        group_abort(p->group, "this rank has left");
        group_leave(p->group);
    }
    if (p->queue != NULL) device_queue_free(p->queue);
    device_free(p->device);
    mem_free(p);
}

/* ---- what the daemon is asked ------------------------------------------------------------------------------------ */

static enum status finish(struct paramd *kv, enum status s, struct op *op, struct error *e)
{
    if (s != STATUS_OK) return s;
    drive_until(kv, op, UINT64_MAX);
    *e = op_result(op)->error;
    return e->status;
}

/* members: freed. *doc: the answer, for json_decref. */
static enum status ask(struct paramd *kv, unsigned method, struct buf *members, json_t **doc, struct error *e)
{
    struct op *op = NULL;
    enum status s = members->failed ? error_set(e, REASON_NO_MEMORY, "no memory for a request") : STATUS_OK;

    if (s == STATUS_OK) s = op_json(kv->engine, method, bytes_of(members->at, members->size), false, &op, e);
    s = finish(kv, s, op, e);
    if (s == STATUS_OK) s = doc_read(bytes_text(op_answer(op)), doc, e);
    op_release(op);
    buf_fini(members);
    return s;
}

/* Tells the daemon that this rank is out, which ends the epoch for all. Answers the last call that counts, and in `why`
 * what the daemon says of the end, which mostly is the cause; UINT64_MAX: it could not be asked. */
static uint64_t say_leave(struct paramd *kv, uint64_t epoch, char why[ERROR_TEXT_SIZE])
{
    struct buf leave = {0}, nothing = {0};
    uint64_t counted = UINT64_MAX;
    json_t *doc = NULL;
    struct error e;

    buf_format(&leave, "\"epoch\":%llu,\"why\":", (unsigned long long)epoch);
    doc_put_text(&leave, bytes_text(why));
    if (ask(kv, WIRE_PlaneLeave, &leave, &doc, &e) != STATUS_OK) return counted;
    counted = doc_u64(doc, "counted", UINT64_MAX);
    json_decref(doc);
    if (ask(kv, WIRE_Plane, &nothing, &doc, &e) != STATUS_OK) return counted;
    if (doc_u64(doc, "epoch", 0) == epoch && doc_text(doc, "why")[0] != '\0')
        snprintf(why, ERROR_TEXT_SIZE, "%s", doc_text(doc, "why"));
    json_decref(doc);
    return counted;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* The epoch is over for this handle. Answers as say_leave; *e says why. */
static uint64_t end_epoch(struct paramd *kv, struct error *e)
{
    struct seat *p = kv->seat;
    uint64_t epoch = p->epoch;
    char why[ERROR_TEXT_SIZE];

    memcpy(why, e->text, sizeof why);
    kv->seat = NULL;
    if (p->group != NULL) group_abort(p->group, why);
    uint64_t counted = epoch > 0 ? say_leave(kv, epoch, why) : 0;
    seat_free(p);
    error_set(e, e->reason, "%s", why);
    return counted;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static enum status has_passed(struct seat *p, uint64_t mark, bool *passed, struct error *e)
{
    uint64_t at = 0;
    enum status s = mark > 0 ? device_passed(p->queue, &at) : STATUS_OK;

    *passed = at >= mark;
    if (s != STATUS_OK) *e = *device_error(p->device);
    return s;
}

/* Until the group is whole and the mark (0: none) has passed; or it has broken, here or as the daemon says. */
static enum status watch(struct paramd *kv, uint64_t mark, struct error *e)
{
    struct seat *p = kv->seat;
    struct op *op = NULL;
    bool passed = false;
    enum status s = op_plane_wait(kv->engine, WAIT_PLANE, p->epoch, p->call + 1, &op, e);

    while (s == STATUS_OK) {
        drive_until(kv, op, clock_ms() + SLICE_MS);
        s = has_passed(p, mark, &passed, e);
        enum group_state state = group_look(p->group, clock_ms()); /* after the mark: then it counts */
        if (s != STATUS_OK || (passed && state == GROUP_READY)) break;
        if (state == GROUP_BROKEN) drive_until(kv, op, clock_ms() + VERDICT_MS);
        *e = op_result(op)->finished ? op_result(op)->error : *group_error(p->group);
        if (state == GROUP_BROKEN || op_result(op)->finished) s = e->status;
    }
    op_release(op);
    return s;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static enum status open_device(const char *name, struct seat **out, struct error *e)
{
    struct seat *p = mem_zero(sizeof *p);
    struct card card;
    enum status s = STATUS_OK;

    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a plane");
    if (name == NULL || !card_parse(name, &card))
        s = error_set(e, REASON_BAD_ARGUMENT, "'%.40s' is no GPU; say cuda:0 or another number", name != NULL ? name : "");
    if (s == STATUS_OK) s = nccl_open(&p->nccl, e);
    if (s == STATUS_OK) s = cuda_device_new(&card, &p->device, e);
    if (s == STATUS_OK) s = device_queue_new(p->device, &p->queue, e);
    if (s == STATUS_OK) *out = p;
    else seat_free(p);
    return s;
}

static bool read_id(const char *hex, struct nccl_id *out)
{
    if (strlen(hex) != 2 * sizeof out->bytes) return false;
    for (size_t i = 0; i < sizeof out->bytes; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return false;
        out->bytes[i] = (char)byte;
    }
    return true;
}

static enum status ask_epoch(struct paramd *kv, struct seat *p, struct error *e)
{
    struct buf nothing = {0};
    struct op *op = NULL;
    json_t *doc = NULL;
    enum status s = ask(kv, WIRE_PlaneJoin, &nothing, &doc, e);

    if (s != STATUS_OK) return s;
    p->epoch = doc_u64(doc, "epoch", 0);
    json_decref(doc);
    s = op_plane_wait(kv->engine, WAIT_PLANE, p->epoch, 0, &op, e);
    s = finish(kv, s, op, e);
    op_release(op);
    return s;
}

static enum status begin_group(struct paramd *kv, struct seat *p, struct error *e)
{
    struct buf nothing = {0};
    json_t *doc = NULL;
    enum status s = ask(kv, WIRE_Plane, &nothing, &doc, e);
    struct nccl_group w = {.nccl = &p->nccl, .count = 1, .queues = &p->queue};

    if (s != STATUS_OK) return s;
    w.ranks = (unsigned)doc_u64(doc, "ranks", 0);
    w.first = (unsigned)doc_u64(doc, "rank", 0);
    w.join_by_ms = clock_ms() + doc_u64(doc, "left_ms", 0);
    if (doc_u64(doc, "epoch", 0) != p->epoch || w.first == 0 || !read_id(doc_text(doc, "id"), &w.id))
        s = error_set(e, REASON_PLANE_BROKEN, "epoch %llu of the plane is over: join the next", (unsigned long long)p->epoch);
    json_decref(doc);
    return s == STATUS_OK ? group_nccl_new(&w, &p->group, e) : s;
}

static enum status leave(struct paramd *kv)
{
    struct error e = {.text = ""};

    if (kv->seat == NULL) return STATUS_OK;
    return end_epoch(kv, &e) != UINT64_MAX ? STATUS_OK : STATUS_UNAVAILABLE;
}

enum status seat_join(struct paramd *kv, const char *device, struct error *e)
{
    struct seat *p = NULL;
    enum status s = drive_enter(kv, e);

    if (s != STATUS_OK) return s;
    (void)leave(kv);
    drive_leave(kv);
    if (kv->options.embedded)
        return error_set(e, REASON_NO_PLANE, "a store inside the process has no plane: open one of type dist_sync");
    s = open_device(device, &p, e);
    if (s == STATUS_OK) s = drive_enter(kv, e);
    if (s != STATUS_OK) {
        seat_free(p);
        return s;
    }
    kv->seat = p;
    s = ask_epoch(kv, p, e);
    if (s == STATUS_OK) s = begin_group(kv, p, e);
    if (s == STATUS_OK) s = watch(kv, 0, e);
    if (s != STATUS_OK) (void)end_epoch(kv, e);
    drive_leave(kv);
    return s;
}

enum status seat_leave(struct paramd *kv, struct error *e)
{
    enum status s = drive_enter(kv, e);

    if (s != STATUS_OK) return s;
    s = leave(kv);
    if (s != STATUS_OK) s = error_set(e, REASON_UNREACHABLE, "the daemon could not be told; it learns of it by itself");
    drive_leave(kv);
    return s;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static enum status give(struct seat *p, enum group_kind kind, const struct paramd_tensor *t, struct error *e)
{
    struct dmem m = {.device = p->device, .at = t->data};
    struct group_call c = {.kind = kind, .type = (enum dtype)tensor_dtype(t), .count = 1, .root = 0};

    for (int i = 0; i < t->ndim; i++) c.count *= (size_t)t->shape[i];
    m.size = c.count * dtype_size(c.type);
    struct group_piece piece = {.queue = p->queue};
    *(kind == GROUP_REDUCE ? &piece.from : &piece.to) = m;
    enum status s = group_give(p->group, &c, &piece);
    if (s != STATUS_OK) *e = *group_error(p->group);
    return s;
}

/* The order is op's, that of the daemon. */
static enum status give_all(struct seat *p, const struct plane_call *c, const struct op *op, uint64_t *mark,
                            struct error *e)
{
    enum status s = STATUS_OK;

    for (size_t i = 0; i < c->tensors.count && s == STATUS_OK; i++)
        s = give(p, GROUP_REDUCE, &c->tensors.values[op_plane_at(op, i)], e);
    for (size_t i = 0; c->outputs != NULL && i < c->tensors.count && s == STATUS_OK; i++)
        s = give(p, GROUP_BROADCAST, &c->outputs[op_plane_at(op, i)], e);
    if (s != STATUS_OK) return s;
    s = device_record(p->queue, mark);
    if (s != STATUS_OK) *e = *device_error(p->device);
    return s;
}

/* Whether they count, and how their updates went. */
static enum status await_applied(struct paramd *kv, const struct plane_call *c, struct op *call, struct error *e)
{
    struct op *op = NULL;

    op_plane_counted(call);
    enum status s = op_wait(kv->engine, c->tensors.count, c->tensors.keys, &op, e);
    s = finish(kv, s, op, e);
    op_release(op);
    return s;
}

/* What has become of a call in an epoch that ended within it. */
static enum status tell_end(struct paramd *kv, const struct plane_call *c, struct op *op, struct error *e)
{
    uint64_t counted = end_epoch(kv, e);
    char why[ERROR_TEXT_SIZE];

    memcpy(why, e->text, sizeof why);
    if (counted == UINT64_MAX) {
        op_plane_forget(op);
        return error_set(e, REASON_PLANE_BROKEN, "%.340s; the daemon could not be asked whether these pushes count", why);
    }
    if (counted < c->number)
        return error_set(e, REASON_PLANE_BROKEN, "%.300s; these pushes do not count: push them again, in the next epoch "
                         "or the ordinary way", why);
    enum status s = await_applied(kv, c, op, e);
    if (s != STATUS_OK || c->outputs == NULL) return s;
    return error_set(e, REASON_PLANE_COUNTED, "%.300s; these pushes count, but the new values did not come: pull them the "
                     "ordinary way", why);
}

/* That they count is known by the new values, or has to be asked for. */
static enum status await_counted(struct paramd *kv, const struct plane_call *c, struct error *e)
{
    struct op *op = NULL;

    if (c->outputs != NULL) return STATUS_OK;
    enum status s = op_plane_wait(kv->engine, WAIT_COUNTED, c->epoch, c->number, &op, e);
    s = finish(kv, s, op, e);
    op_release(op);
    return s;
}

static enum status run_call(struct paramd *kv, const struct plane_call *c, struct op *op, struct error *e)
{
    struct seat *p = kv->seat;
    uint64_t mark = 0;

    p->call = c->number;
    enum status s = give_all(p, c, op, &mark, e);
    if (s == STATUS_OK) s = watch(kv, mark, e);
    if (s == STATUS_OK) s = await_counted(kv, c, e);
    return s == STATUS_OK ? await_applied(kv, c, op, e) : tell_end(kv, c, op, e);
}

enum status seat_push(struct paramd *kv, const struct tensors *gradients, const struct paramd_tensor *outputs,
                       struct error *e)
{
    struct op *op = NULL;
    enum status s = drive_enter(kv, e);

    if (s != STATUS_OK) return s;
    struct plane_call c = {.tensors = *gradients, .outputs = outputs};
    if (kv->seat == NULL) {
        s = error_set(e, REASON_NO_PLANE, "this handle is on no plane: join one first (paramd_plane_join)");
        goto out;
    }
    c.epoch = kv->seat->epoch;
    c.number = kv->seat->call + 1;
    s = op_plane_call(kv->engine, &c, &op, e);
    s = finish(kv, s, op, e);
    if (s == STATUS_OK) s = run_call(kv, &c, op, e);
    else if (op != NULL && (op_plane_announced(op) || e->reason == REASON_PLANE_BROKEN)) s = tell_end(kv, &c, op, e);
    op_release(op);
out:
    drive_leave(kv);
    return s;
}
