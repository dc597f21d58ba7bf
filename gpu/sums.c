#include "gpu/sums.h"

#include "gpu/array.h"
#include "gpu/group_nccl.h"
#include "service/base/clock.h"
#include "service/base/mem.h"

#include <string.h>
#include <time.h>

enum {
    JOIN_MS = 30000,             /* NCCL looks at the machine first, which takes seconds */
    STALL_MS = 60000,            /* without an end or an error */
    PAUSE_NS = 20000
};

/* A GPU: rank i of the group. */
struct seat {
    struct device *device;
    struct queue *queue;
    struct dmem sum, next;       /* of a piece: what this GPU has, and the value that is added to it */
};

struct sums {
    struct device *device;
    size_t piece;
    unsigned count;
    struct seat seats[ARRAY_MEMBERS_MAX];
    bool has_nccl, has_looked;
    struct nccl nccl;
    struct error why_not;
    struct group *group;         /* NULL: none, or broken */
};

/* Elements from .. from + count of a list, whose sum lies at `to` of a GPU. */
struct piece {
    const struct sum_list *list;
    size_t from, count;
    unsigned root;
    struct dmem to;
};

/* ---- the group -------------------------------------------------------------------------------------------------- */

static void pause_a_little(void) { nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL); }

static void leave(struct sums *s)
{
    group_leave(s->group);
    s->group = NULL;
}

static enum status join_nccl(struct sums *s, struct error *e)
{
    struct queue *queues[ARRAY_MEMBERS_MAX];
    struct nccl_group g = {.nccl = &s->nccl, .ranks = s->count, .count = s->count, .queues = queues,
                           .join_by_ms = clock_ms() + JOIN_MS};
    enum status st = nccl_id_new(&s->nccl, &g.id, e);

    for (unsigned i = 0; i < s->count; i++) queues[i] = s->seats[i].queue;
    if (st == STATUS_OK) st = group_nccl_new(&g, &s->group, e);
    if (st != STATUS_OK) return st;
    while (group_look(s->group, clock_ms()) == GROUP_JOINING) pause_a_little();
    if (s->group->state == GROUP_READY) return STATUS_OK;
    *e = *group_error(s->group);
    leave(s);
    return e->status;
}

static enum status join(struct sums *s, struct error *e)
{
    struct device *devices[ARRAY_MEMBERS_MAX];
    enum status st;

    if (s->group != NULL) return STATUS_OK;
    if (!s->has_looked) s->has_nccl = nccl_open(&s->nccl, &s->why_not) == STATUS_OK;
    s->has_looked = true;
    if (s->has_nccl) {
        st = join_nccl(s, e);
        if (st != STATUS_UNIMPLEMENTED) return st;
        s->why_not = *e;
        s->has_nccl = false;
    }
    for (unsigned i = 0; i < s->count; i++) devices[i] = s->seats[i].device;
    return group_local_new(devices, s->count, &s->group, e);
}

const char *sums_kind(const struct sums *s) { return s->group != NULL ? s->group->ops->kind : NULL; }
const char *sums_why_not(const struct sums *s) { return s->why_not.text; }

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

static struct dmem part_of(struct dmem m, size_t offset, size_t size)
{
    m.at = (char *)m.at + offset;
    if (m.host != NULL) m.host = (char *)m.host + offset;
    m.size = size;
    return m;
}

static const char *value_at(const struct piece *p, size_t value)
{
    return (const char *)p->list->values[value] + p->from * dtype_size(p->list->type);
}

/* Brings the values of one GPU there, and adds them up. The GPU that the sum is for does that in its place. */
static enum status gather(struct sums *s, const struct piece *p, unsigned seat, struct dmem sum, uint32_t *flags)
{
    struct seat *at = &s->seats[seat];
    size_t size = p->count * dtype_size(p->list->type);
    enum status st = seat < p->list->value_count ? device_upload(at->queue, sum, 0, value_at(p, seat), size)
                                                 : device_zero(at->queue, sum, size);

    for (size_t v = seat + s->count; v < p->list->value_count && st == STATUS_OK; v += s->count) {
        st = device_upload(at->queue, at->next, 0, value_at(p, v), size);
        if (st == STATUS_OK) st = device_add(at->queue, sum, at->next, p->list->type, p->count, flags);
    }
    return st;
}

static enum status take_piece(struct sums *s, const struct piece *p, uint32_t *flags, struct error *e)
{
    struct group_piece pieces[ARRAY_MEMBERS_MAX];
    struct group_call call = {.kind = GROUP_REDUCE, .type = p->list->type, .count = p->count, .root = p->root};

    for (unsigned i = 0; i < s->count; i++) {
        struct dmem sum = i == p->root ? p->to : s->seats[i].sum;
        enum status st = gather(s, p, i, sum, flags);
        if (st != STATUS_OK) {
            *e = *device_error(s->seats[i].device);
            return st;
        }
        pieces[i] = (struct group_piece){s->seats[i].queue, sum, sum};
    }
    enum status st = group_give(s->group, &call, pieces);
    if (st != STATUS_OK) *e = *group_error(s->group);
    return st;
}

/* The part of the sum that lies on one GPU, in pieces. */
static enum status take_part(struct sums *s, const struct sum_list *l, size_t from, struct array_piece part,
                             uint32_t *flags, struct error *e)
{
    size_t element = dtype_size(l->type), count = part.mem.size / element;
    enum status st = STATUS_OK;

    if (count > l->count - from) count = l->count - from;
    for (size_t at = 0; at < count && st == STATUS_OK; at += s->piece) {
        size_t n = count - at < s->piece ? count - at : s->piece;
        struct piece p = {l, from + at, n, part.member, part_of(part.mem, at * element, n * element)};
        st = take_piece(s, &p, flags, e);
    }
    return st;
}

/* ---- buffers ---------------------------------------------------------------------------------------------------- */

static enum status grow(struct device *d, struct dmem *m, size_t size, struct error *e)
{
    if (m->size >= size) return STATUS_OK;
    device_mem_free(m);
    return device_mem_new(d, size, m, e);
}

static enum status make_room(struct sums *s, const struct sum_list *l, struct error *e)
{
    size_t size = (l->count < s->piece ? l->count : s->piece) * dtype_size(l->type);
    enum status st = STATUS_OK;

    for (unsigned i = 0; i < s->count && st == STATUS_OK; i++) {
        st = grow(s->seats[i].device, &s->seats[i].sum, size, e);
        if (st == STATUS_OK && l->value_count > s->count) st = grow(s->seats[i].device, &s->seats[i].next, size, e);
    }
    return st;
}

/* ---- the end of a list ------------------------------------------------------------------------------------------- */

/* A broken group has let go of the streams. */
static void quiet(struct sums *s)
{
    for (unsigned i = 0; i < s->count; i++) {
        uint64_t mark = 0;
        if (device_record(s->seats[i].queue, &mark) == STATUS_OK) (void)!device_wait(s->seats[i].queue, mark);
    }
}

static enum status has_passed(struct sums *s, const uint64_t marks[ARRAY_MEMBERS_MAX], bool *all, struct error *e)
{
    *all = true;
    for (unsigned i = 0; i < s->count; i++) {
        uint64_t passed = 0;
        enum status st = device_passed(s->seats[i].queue, &passed);
        if (st != STATUS_OK) {
            *e = *device_error(s->seats[i].device);
            return st;
        }
        *all = *all && passed >= marks[i];
    }
    return STATUS_OK;
}

/* The sum counts when the marks have passed and the group is still whole. */
static enum status wait_for_all(struct sums *s, struct error *e)
{
    uint64_t marks[ARRAY_MEMBERS_MAX], until = clock_ms() + STALL_MS;
    enum status st = STATUS_OK;
    bool all = false;

    for (unsigned i = 0; i < s->count && st == STATUS_OK; i++) {
        st = device_record(s->seats[i].queue, &marks[i]);
        if (st != STATUS_OK) *e = *device_error(s->seats[i].device);
    }
    while (st == STATUS_OK && !all) {
        st = has_passed(s, marks, &all, e);
        if (group_look(s->group, clock_ms()) != GROUP_READY) break;
        if (all || st != STATUS_OK) break;
        if (clock_ms() >= until) group_abort(s->group, "its work has not ended in a minute");
        pause_a_little();
    }
    if (st == STATUS_OK && group_look(s->group, clock_ms()) != GROUP_READY) {
        *e = *group_error(s->group);
        st = e->status;
    }
    return st;
}

static enum status take(struct sums *s, const struct sum_list *l, struct error *e)
{
    size_t from = 0, count = array_piece_count(l->to);
    enum status st = STATUS_OK;
    uint32_t flags = 0;          /* of fractions: none is ever raised */

    for (size_t i = 0; i < count && st == STATUS_OK; i++) {
        struct array_piece part = array_piece_at(s->device, l->to, i);
        st = take_part(s, l, from, part, &flags, e);
        from += part.mem.size / dtype_size(l->type);
    }
    if (st == STATUS_OK) st = wait_for_all(s, e);
    if (st == STATUS_OK) return st;
    group_abort(s->group, "a list could not be summed");
    quiet(s);
    leave(s);
    return st;
}

enum status sums_take(struct sums *s, const struct sum_list *l, struct error *e)
{
    enum status st = join(s, e);

    if (st == STATUS_OK) st = make_room(s, l, e);
    return st == STATUS_OK && l->count > 0 ? take(s, l, e) : st;
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

enum status sums_new(struct device *d, size_t piece, struct sums **out, struct error *e)
{
    struct device *members[ARRAY_MEMBERS_MAX];
    struct sums *s = mem_zero(sizeof *s);
    enum status st = STATUS_OK;

    if (s == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for sums of lists");
    s->device = d;
    s->piece = piece > 0 ? piece : SUM_PIECE;
    s->count = device_members(d, members);
    for (unsigned i = 0; i < s->count && st == STATUS_OK; i++) {
        s->seats[i].device = members[i];
        st = device_queue_new(members[i], &s->seats[i].queue, e);
    }
    if (st != STATUS_OK) {
        sums_free(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void sums_free(struct sums *s)
{
    if (s == NULL) return;
    leave(s);
    for (unsigned i = 0; i < s->count; i++) {
        device_queue_free(s->seats[i].queue);
        device_mem_free(&s->seats[i].sum);
        device_mem_free(&s->seats[i].next);
    }
    mem_free(s);
}
