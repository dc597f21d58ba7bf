/* A group of members of one process: bytes go through host memory, sums are taken on the device that needs them. It
 * waits, as it has to know that one device has read before another writes; for sums at full speed there is NCCL. */
#include "gpu/group.h"

#include "service/base/mem.h"

struct local {
    struct group group;
    char *host;                      /* of the call in hand */
    size_t host_size;
};

static struct local *local_of(struct group *g) { return (struct local *)g; }

/* What a member's device answered. Nobody knows then what the others have. */
static enum status settle(struct group *g, unsigned member, enum status s)
{
    if (s != STATUS_OK) group_break(g, device_error(g->devices[member]));
    return s;
}

static enum status finish(struct group *g, unsigned member, struct queue *q)
{
    uint64_t mark = 0;
    enum status s = settle(g, member, device_record(q, &mark));

    return s != STATUS_OK ? s : settle(g, member, device_wait(q, mark));
}

static enum status fetch(struct group *g, unsigned member, const struct group_piece *p, size_t offset, size_t size)
{
    enum status s = settle(g, member, device_download(p->queue, local_of(g)->host, p->from, offset, size));
    return s != STATUS_OK ? s : finish(g, member, p->queue);
}

static enum status put(struct group *g, unsigned member, const struct group_piece *p, struct dmem to, size_t offset,
                       size_t size)
{
    enum status s = settle(g, member, device_upload(p->queue, to, offset, local_of(g)->host, size));
    return s != STATUS_OK ? s : finish(g, member, p->queue);
}

/* Adds bytes offset.. of every member's `from` on the device of `at`, in the order of the ranks; the sum is in the host's
 * memory afterwards. */
static enum status sum_up(struct group *g, const struct group_call *c, const struct group_piece *pieces, unsigned at,
                          size_t offset, size_t size)
{
    struct dmem sum = {0}, next = {0};
    struct group_piece result = {.queue = pieces[at].queue};
    uint32_t flags = 0;
    struct error e;
    enum status s = device_mem_new(g->devices[at], size, &sum, &e);

    if (s == STATUS_OK) s = device_mem_new(g->devices[at], size, &next, &e);
    if (s != STATUS_OK) group_break(g, &e);
    for (unsigned i = 0; i < g->count && s == STATUS_OK; i++) {
        s = fetch(g, i, &pieces[i], offset, size);
        if (s == STATUS_OK) s = put(g, at, &pieces[at], i == 0 ? sum : next, 0, size);
        if (s != STATUS_OK || i == 0) continue;
        s = settle(g, at, device_add(result.queue, sum, next, c->type, c->count, &flags));
    }
    result.from = sum;
    if (s == STATUS_OK) s = fetch(g, at, &result, 0, size);
    if (s != STATUS_OK) (void)!finish(g, at, result.queue); /* an addition may be under way */
    device_mem_free(&sum);
    device_mem_free(&next);
    return s;
}

static enum status put_to_all(struct group *g, const struct group_piece *pieces, size_t offset, size_t size)
{
    enum status s = STATUS_OK;

    for (unsigned i = 0; i < g->count && s == STATUS_OK; i++) s = put(g, i, &pieces[i], pieces[i].to, offset, size);
    return s;
}

static enum status run(struct group *g, const struct group_call *c, const struct group_piece *pieces, size_t size)
{
    enum status s = STATUS_OK;

    switch (c->kind) {
    case GROUP_REDUCE:
        s = sum_up(g, c, pieces, c->root, 0, size);
        return s != STATUS_OK ? s : put(g, c->root, &pieces[c->root], pieces[c->root].to, 0, size);
    case GROUP_ALL_REDUCE:
        s = sum_up(g, c, pieces, 0, 0, size);
        return s != STATUS_OK ? s : put_to_all(g, pieces, 0, size);
    case GROUP_BROADCAST:
        s = fetch(g, c->root, &pieces[c->root], 0, size);
        return s != STATUS_OK ? s : put_to_all(g, pieces, 0, size);
    case GROUP_REDUCE_SCATTER:
        for (unsigned i = 0; i < g->count && s == STATUS_OK; i++) {
            s = sum_up(g, c, pieces, i, i * size, size);
            if (s == STATUS_OK) s = put(g, i, &pieces[i], pieces[i].to, 0, size);
        }
        return s;
    case GROUP_ALL_GATHER:
        for (unsigned i = 0; i < g->count && s == STATUS_OK; i++) {
            s = fetch(g, i, &pieces[i], 0, size);
            if (s == STATUS_OK) s = put_to_all(g, pieces, i * size, size);
        }
        return s;
    case GROUP_KINDS_END: break;
    }
    return s;
}

static enum status local_give(struct group *g, const struct group_call *c, const struct group_piece *pieces)
{
    struct local *l = local_of(g);
    size_t size = c->count * dtype_size(c->type);

    if (size > l->host_size) {
        char *host = mem_aligned(size);
        if (host == NULL) return error_set(&g->error, REASON_NO_MEMORY, "no memory for %zu bytes between devices", size);
        mem_free(l->host);
        l->host = host;
        l->host_size = size;
    }
    return run(g, c, pieces, size);
}

static void local_look(struct group *g)
{
    for (unsigned i = 0; i < g->count; i++)
        if (g->devices[i]->lost) group_break(g, device_error(g->devices[i]));
}

static void local_abort(struct group *g) { (void)g; }

static void local_leave(struct group *g)
{
    mem_free(local_of(g)->host);
    mem_free(g);
}

static const struct group_ops local_ops = {
    .kind = "local", .leave = local_leave, .give = local_give, .look = local_look, .abort = local_abort,
};

enum status group_local_new(struct device *const *devices, unsigned count, struct group **out, struct error *e)
{
    struct local *l;

    if (count == 0 || count > GROUP_MEMBERS_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "%u members; a process brings 1 to %d to a group", count,
                         GROUP_MEMBERS_MAX);
    l = mem_zero(sizeof *l);
    if (l == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a group");
    l->group = (struct group){.ops = &local_ops, .ranks = count, .count = count, .state = GROUP_READY};
    for (unsigned i = 0; i < count; i++) l->group.devices[i] = devices[i];
    *out = &l->group;
    return STATUS_OK;
}
