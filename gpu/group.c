#include "gpu/group.h"

static const char *const kind_names[] = {
#define KIND_NAME(name, to, from) #name,
    GROUP_KINDS(KIND_NAME)
#undef KIND_NAME
};

void group_leave(struct group *g)
{
    if (g != NULL) g->ops->leave(g);
}

const struct error *group_error(const struct group *g) { return &g->error; }

void group_break(struct group *g, const struct error *why)
{
    if (g->state == GROUP_BROKEN) return;
    g->error = *why;
    g->state = GROUP_BROKEN;
}

static void end(struct group *g, enum reason r, const char *why)
{
    struct error e;

    if (g->state == GROUP_BROKEN) return;
    error_set(&e, r, "the group of %u was ended: %.300s", g->ranks, why);
    g->ops->abort(g);
    group_break(g, &e);
}

void group_abort(struct group *g, const char *why) { end(g, REASON_CANCELLED, why); }

enum group_state group_look(struct group *g, uint64_t now_ms)
{
    if (g->state != GROUP_BROKEN) g->ops->look(g);
    if (g->state == GROUP_JOINING && now_ms >= g->join_by_ms)
        end(g, REASON_UNREACHABLE, "not all of its ranks came in time");
    return g->state;
}

/* ---- calls: what is common to all groups is checked here, once --------------------------------------------------- */

static bool sums(enum group_kind k) { return k == GROUP_REDUCE || k == GROUP_ALL_REDUCE || k == GROUP_REDUCE_SCATTER; }

static enum status refuse(struct group *g, const struct group_call *c, unsigned rank, const char *fault)
{
    return error_set(&g->error, REASON_BAD_ARGUMENT, "%s by the group, rank %u: %s", kind_names[c->kind], rank, fault);
}

static enum status check_memory(struct group *g, const struct group_call *c, unsigned rank, const struct group_piece *p,
                                struct dmem m, size_t parts)
{
    if (m.device != p->queue->device) return refuse(g, c, rank, "memory is none, or of another device than the queue");
    if (c->count > m.size / dtype_size(c->type) / parts)
        return refuse(g, c, rank, "memory has fewer elements than are asked");
    if (m.place.home & HOME_IN_PARTS) return refuse(g, c, rank, "memory lies in parts");
    return STATUS_OK;
}

static enum status check_piece(struct group *g, const struct group_call *c, unsigned member, const struct group_piece *p)
{
    unsigned rank = g->first + member;
    bool is_root = rank == c->root;
    bool takes = c->kind != GROUP_REDUCE || is_root, gives = c->kind != GROUP_BROADCAST || is_root;
    enum status s = STATUS_OK;

    if (p->queue == NULL || p->queue->device != g->devices[member])
        return refuse(g, c, rank, "queue is of another device");
    if (takes) s = check_memory(g, c, rank, p, p->to, c->kind == GROUP_ALL_GATHER ? g->ranks : 1);
    if (s == STATUS_OK && gives)
        s = check_memory(g, c, rank, p, p->from, c->kind == GROUP_REDUCE_SCATTER ? g->ranks : 1);
    if (s == STATUS_OK && p->to.at == p->from.at && (c->kind == GROUP_REDUCE_SCATTER || c->kind == GROUP_ALL_GATHER))
        s = refuse(g, c, rank, "'to' is the memory of 'from'");
    return s;
}

static enum status check_call(struct group *g, const struct group_call *c)
{
    if ((unsigned)c->kind >= GROUP_KINDS_END || !dtype_known(c->type) || c->root >= g->ranks)
        return error_set(&g->error, REASON_BAD_ARGUMENT, "a call of the group with no such kind, dtype or root");
    if (sums(c->kind) && c->type != DTYPE_f32 && c->type != DTYPE_f64)
        return error_set(&g->error, REASON_BAD_ARGUMENT, "%s of %s: a group sums f32 and f64", kind_names[c->kind],
                         dtype_name(c->type));
    return STATUS_OK;
}

enum status group_give(struct group *g, const struct group_call *c, const struct group_piece *pieces)
{
    enum status s = g->state == GROUP_BROKEN ? g->error.status : check_call(g, c);

    if (g->state == GROUP_JOINING)
        return error_set(&g->error, REASON_BAD_ARGUMENT, "a call of the group before all its ranks have come");
    for (unsigned i = 0; i < g->count && s == STATUS_OK; i++) s = check_piece(g, c, i, &pieces[i]);
    return s != STATUS_OK || c->count == 0 ? s : g->ops->give(g, c, pieces);
}
