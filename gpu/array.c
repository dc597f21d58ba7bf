#include "gpu/array.h"

#include "service/base/list.h"
#include "service/base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* With the last resort, which comes behind the others. */
enum { ALL_MAX = ARRAY_MEMBERS_MAX + 1 };

struct array {
    struct device device;
    struct device_ops ops;               /* its own, for the sake of the name */
    char kind[32];
    unsigned count;                      /* that values are spread over */
    unsigned all;                        /* count, or one more */
    size_t part;                         /* elements */
    struct device *members[ALL_MAX];
    int64_t kept[ALL_MAX];               /* bytes, for the values that live there */
    struct list queues;
};

/* Where the pieces of a memory are: one on member `first`; of several part i on member (first + i) % count. */
struct layout {
    unsigned first;
    size_t count;
    size_t part_size;                    /* bytes; the last may be shorter. One piece: SIZE_MAX */
    struct dmem parts[];
};

/* A mark of the array that has not passed everywhere, and the marks of the members that it stands for. */
struct point {
    uint64_t mark;
    uint64_t of_member[ALL_MAX];
};

/* What is to be put together on the host once the members have done their parts. */
struct merge {
    struct merge *next;
    uint64_t mark;                       /* with which it is due */
    uint32_t *flags;
    struct stats *stats;                 /* NULL: flags alone */
    size_t count;
    struct partial {
        uint32_t flags;
        struct stats stats;
    } partial[];
};

struct array_queue {
    struct queue queue;
    struct list_node node;
    struct queue *members[ALL_MAX];
    uint32_t given;                      /* bit i: member i has got work since the last point */
    uint64_t last[ALL_MAX];              /* marks of the members with all work before that */
    uint64_t seen[ALL_MAX];              /* of them, those known to have passed */
    struct point *points;                /* a ring; begin is the oldest */
    size_t begin, used, capacity;
    uint64_t passed;
    struct merge *merges, **last_merge;  /* in the order of their marks */
};

static struct array *array_of(const struct device *d) { return (struct array *)d; }
static struct array_queue *queue_of(struct queue *q) { return (struct array_queue *)q; }
static const struct layout *layout_of(struct dmem m) { return m.own; }

unsigned array_member_count(const struct device *d) { return array_of(d)->count; }
const struct device *array_member(const struct device *d, unsigned i) { return array_of(d)->members[i]; }

/* When the whole is lost, members that are not may still be at work on memory that will now be freed. */
static void quiet(struct array *a)
{
    LIST_EACH(struct array_queue, q, node, &a->queues)
        for (unsigned i = 0; i < a->all; i++) {
            uint64_t mark = 0;
            if (device_record(q->members[i], &mark) == STATUS_OK) (void)!device_wait(q->members[i], mark);
        }
}

/* What a member answered that has told the caller why: its loss is the array's. */
static enum status blame(struct array *a, unsigned member, enum status s)
{
    const struct device *m = a->members[member];

    if (s == STATUS_OK || !m->lost) return s;
    snprintf(a->device.why, sizeof a->device.why, "%s%s%.120s", device_kind(m), m->why[0] != '\0' ? ": " : "", m->why);
    quiet(a);
    return s;
}

/* What a member answered, told as the array's own. */
static enum status pass(struct array *a, unsigned member, enum status s)
{
    if (s == STATUS_OK) return s;
    a->device.error = *device_error(a->members[member]);
    return blame(a, member, s);
}

/* A part of a call was taken by one member and the rest refused by another. */
static enum status lose(struct array *a)
{
    quiet(a);
    snprintf(a->device.why, sizeof a->device.why, "a part of the work was done and the rest refused");
    return error_set(&a->device.error, REASON_DEVICE_LOST, "%s", a->device.why);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* A home: which member comes first, and the bits. */
enum { HOME_BITS = 2 };

static uint32_t home_of(unsigned first, bool in_parts) { return first << HOME_BITS | (in_parts ? HOME_IN_PARTS : 0); }

static unsigned first_of(const struct array *a, uint32_t home)
{
    return home & HOME_ON_CPU ? a->count : home >> HOME_BITS;
}

static size_t least_of(size_t a, size_t b) { return a < b ? a : b; }

/* The shares of the members in `size` bytes of a value: all with the first, or as its elements lie. */
static void spread(const struct array *a, uint32_t home, size_t count, int64_t size, int64_t share[ALL_MAX])
{
    size_t whole = count / a->part, rest = count % a->part;
    unsigned first = first_of(a, home);

    memset(share, 0, ALL_MAX * sizeof *share);
    if (!(home & HOME_IN_PARTS)) share[first] = size;
    for (unsigned i = 0; home & HOME_IN_PARTS && i < a->count; i++) {
        size_t elements = (whole / a->count + (i < whole % a->count)) * a->part + (i == whole % a->count ? rest : 0);
        share[(first + i) % a->count] = size / (int64_t)count * (int64_t)elements;
    }
}

static bool has_room(const struct array *a, uint32_t home, size_t count, uint64_t size)
{
    int64_t share[ALL_MAX];

    spread(a, home, count, (int64_t)size, share);
    for (unsigned i = 0; i < a->count; i++)
        if (a->members[i]->capacity > 0 && a->kept[i] + share[i] > (int64_t)a->members[i]->capacity) return false;
    return true;
}

static void array_home_keep(struct device *d, uint32_t home, size_t count, int64_t more)
{
    struct array *a = array_of(d);
    int64_t share[ALL_MAX];

    spread(a, home, count, more, share);
    for (unsigned i = 0; i < a->all; i++) a->kept[i] += share[i];
}

/* Of what is known; else all are taken to be alike. */
static int64_t room_of(const struct array *a, unsigned i)
{
    uint64_t capacity = a->members[i]->capacity;
    return (capacity > 0 ? (int64_t)capacity : INT64_MAX / 2) - a->kept[i];
}

static uint32_t array_home_new(struct device *d, size_t count, bool whole, uint64_t size)
{
    struct array *a = array_of(d);
    unsigned most = 0;

    for (unsigned i = 1; i < a->count; i++)
        if (room_of(a, i) > room_of(a, most)) most = i;
    uint32_t home = home_of(most, !whole && count > a->part && a->count > 1);
    if (d->cpu != NULL && !has_room(a, home, count, size)) home = HOME_ON_CPU;
    array_home_keep(d, home, count, (int64_t)size);
    return home;
}

static const char *array_home_name(const struct device *d, uint32_t home)
{
    const struct array *a = array_of(d);
    return device_kind(home & HOME_IN_PARTS ? d : a->members[first_of(a, home)]);
}

static void layout_free(struct layout *l)
{
    for (size_t i = 0; i < l->count; i++) device_mem_free(&l->parts[i]);
    mem_free(l);
}

static struct layout *layout_new(struct array *a, size_t size, struct mem_place place)
{
    bool cut = place.home & HOME_IN_PARTS;
    size_t part_size = cut ? a->part * place.element : SIZE_MAX, count = cut ? (size - 1) / part_size + 1 : 1;
    struct layout *l = mem_zero(sizeof *l + count * sizeof l->parts[0]);

    if (l == NULL) return NULL;
    *l = (struct layout){.first = first_of(a, place.home), .count = count, .part_size = part_size};
    return l;
}

static unsigned member_of(const struct array *a, const struct layout *l, size_t part)
{
    return l->count == 1 ? l->first : (unsigned)((l->first + part) % a->count);
}

/* Memory in parts has no address that anything could follow; it gets a range of its own where nothing may be read or
 * written, so that no two pieces seem to overlap and a mistake is a fault. */
static enum status range_new(struct dmem *m, struct error *e)
{
    m->at = mmap(NULL, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->at != MAP_FAILED) return STATUS_OK;
    return error_set(e, REASON_NO_MEMORY, "no addresses for %zu bytes of device memory", m->size);
}

static enum status array_mem_new_at(struct device *d, size_t size, struct mem_place place, struct dmem *out,
                                    struct error *e)
{
    struct array *a = array_of(d);
    struct layout *l = NULL;
    enum status s = STATUS_OK;

    if (first_of(a, place.home) >= a->all || ((place.home & HOME_IN_PARTS) && place.element == 0))
        return error_set(e, REASON_BAD_ARGUMENT, "%u is no home of %s", place.home, a->kind);
    l = layout_new(a, size, place);
    if (l == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the parts of %zu bytes", size);
    *out = (struct dmem){.device = d, .size = size, .own = l};
    for (size_t i = 0; i < l->count && s == STATUS_OK; i++) {
        size_t left = size - i * (l->count > 1 ? l->part_size : 0);
        unsigned member = member_of(a, l, i);
        s = blame(a, member, device_mem_new(a->members[member], least_of(left, l->part_size), &l->parts[i], e));
    }
    if (s == STATUS_OK && l->count > 1) s = range_new(out, e);
    if (s != STATUS_OK) {
        layout_free(l);
        return s;
    }
    if (l->count > 1) return STATUS_OK;
    out->at = l->parts[0].at;
    out->host = l->parts[0].host;
    return STATUS_OK;
}

static enum status array_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    return array_mem_new_at(d, size, (struct mem_place){0}, out, e);
}

/* On the first member; uploads and downloads of the others reach it as they reach the memory of a host. */
static enum status array_shared_new(struct device *d, size_t size, struct dmem *out, struct mem_handle *handle,
                                    struct error *e)
{
    struct array *a = array_of(d);
    struct layout *l = layout_new(a, size, (struct mem_place){0});

    if (l == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for the parts of %zu bytes", size);
    enum status s = blame(a, 0, device_shared_new(a->members[0], size, &l->parts[0], handle, e));
    if (s != STATUS_OK) {
        layout_free(l);
        return s;
    }
    *out = (struct dmem){.device = d, .at = l->parts[0].at, .host = l->parts[0].host, .size = size, .own = l};
    return STATUS_OK;
}

static void array_mem_free(struct dmem *m)
{
    struct layout *l = m->own;

    if (l->count > 1) munmap(m->at, m->size);
    layout_free(l);
}

static enum status array_pin_new(struct device *d, size_t size, void **out, struct error *e)
{
    return blame(array_of(d), 0, device_pin_new(array_of(d)->members[0], size, out, e));
}

static void array_pin_free(struct device *d, void *pin) { device_pin_free(array_of(d)->members[0], pin); }

static void array_trim(struct device *d)
{
    for (unsigned i = 0; i < array_of(d)->count; i++) device_trim(array_of(d)->members[i]);
}

static uint64_t array_cached(const struct device *d)
{
    const struct array *a = (const struct array *)d;
    uint64_t sum = 0;

    for (unsigned i = 0; i < a->count; i++) sum += device_cached(a->members[i]);
    return sum;
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

static struct point *point_at(struct array_queue *q, size_t i) { return &q->points[(q->begin + i) % q->capacity]; }

/* Room for one point more, found when work is given, so that a mark never fails for lack of memory. */
static enum status reserve_point(struct array_queue *q)
{
    size_t capacity = q->capacity > 0 ? 2 * q->capacity : 8;

    if (q->used < q->capacity) return STATUS_OK;
    struct point *points = mem_array(capacity, sizeof *points);
    if (points == NULL) return error_set(&q->queue.device->error, REASON_NO_MEMORY, "no memory to queue work");
    for (size_t i = 0; i < q->used; i++) points[i] = *point_at(q, i);
    mem_free(q->points);
    q->points = points;
    q->capacity = capacity;
    q->begin = 0;
    return STATUS_OK;
}

/* Without new work a mark passes with the last one. */
static enum status array_record(struct queue *queue, uint64_t *mark)
{
    struct array_queue *q = queue_of(queue);
    struct array *a = array_of(queue->device);
    struct point *p;

    *mark = queue->mark + 1;
    for (unsigned i = 0; i < a->all; i++) {
        if (!(q->given >> i & 1)) continue;
        enum status s = pass(a, i, device_record(q->members[i], &q->last[i]));
        if (s != STATUS_OK) return s;
    }
    if (q->given != 0) {
        p = point_at(q, q->used++);
        memcpy(p->of_member, q->last, sizeof p->of_member);
        p->mark = *mark;
    } else if (q->used > 0) {
        point_at(q, q->used - 1)->mark = *mark;
    } else {
        q->passed = *mark;
    }
    q->given = 0;
    return STATUS_OK;
}

static void merge_now(struct merge *m)
{
    if (m->stats != NULL) stats_clear(m->stats);
    for (size_t i = 0; i < m->count; i++) {
        if (m->stats != NULL) stats_merge(m->stats, &m->partial[i].stats);
        if (m->flags != NULL) *m->flags |= m->partial[i].flags;
    }
}

static void merge_until(struct array_queue *q, uint64_t mark)
{
    for (struct merge *m; (m = q->merges) != NULL && m->mark <= mark;) {
        merge_now(m);
        q->merges = m->next;
        mem_free(m);
    }
    if (q->merges == NULL) q->last_merge = &q->merges;
}

static void merge_drop(struct array_queue *q)
{
    for (struct merge *m = q->merges; m != NULL; m = m->next) m->flags = NULL, m->stats = NULL;
}

/* The oldest point has passed everywhere. */
static void retire_point(struct array_queue *q)
{
    q->passed = point_at(q, 0)->mark;
    q->begin = (q->begin + 1) % q->capacity;
    q->used--;
    merge_until(q, q->passed);
}

/* Asks only the members that the oldest point still waits for. */
static enum status look(struct array *a, struct array_queue *q, bool *passed)
{
    const struct point *p = point_at(q, 0);

    *passed = true;
    for (unsigned i = 0; i < a->all; i++) {
        if (p->of_member[i] <= q->seen[i]) continue;
        enum status s = pass(a, i, device_passed(q->members[i], &q->seen[i]));
        if (s != STATUS_OK) return s;
        *passed = *passed && p->of_member[i] <= q->seen[i];
    }
    return STATUS_OK;
}

static enum status array_passed(struct queue *queue, uint64_t *mark)
{
    struct array_queue *q = queue_of(queue);
    bool passed = true;

    while (q->used > 0 && passed) {
        enum status s = look(array_of(queue->device), q, &passed);
        if (s != STATUS_OK) return s;
        if (passed) retire_point(q);
    }
    *mark = q->passed;
    return STATUS_OK;
}

static enum status array_wait(struct queue *queue, uint64_t mark)
{
    struct array_queue *q = queue_of(queue);
    struct array *a = array_of(queue->device);

    while (q->used > 0 && q->passed < mark) {
        const struct point *p = point_at(q, 0);
        for (unsigned i = 0; i < a->all; i++) {
            if (p->of_member[i] <= q->seen[i]) continue;
            enum status s = pass(a, i, device_wait(q->members[i], p->of_member[i]));
            if (s != STATUS_OK) return s;
            q->seen[i] = p->of_member[i];
        }
        retire_point(q);
    }
    return STATUS_OK;
}

/* The point with which the mark passes; NULL: it has passed. */
static const struct point *point_of(struct array_queue *q, uint64_t mark)
{
    if (mark <= q->passed) return NULL;
    for (size_t i = 0; i < q->used; i++)
        if (point_at(q, i)->mark >= mark) return point_at(q, i);
    return NULL;
}

static enum status array_await(struct queue *queue, struct queue *other, uint64_t mark)
{
    struct array_queue *q = queue_of(queue), *of = queue_of(other);
    struct array *a = array_of(queue->device);
    const struct point *p = point_of(of, mark);
    enum status s = p != NULL ? reserve_point(q) : STATUS_OK;

    if (p == NULL || s != STATUS_OK) return s;
    for (unsigned i = 0; i < a->all; i++) {
        if (p->of_member[i] <= of->seen[i]) continue;
        s = pass(a, i, device_await(q->members[i], of->members[i], p->of_member[i]));
        if (s != STATUS_OK) return s;
        q->given |= 1u << i;
    }
    return STATUS_OK;
}

static void array_queue_free(struct queue *queue)
{
    struct array_queue *q = queue_of(queue);

    for (unsigned i = 0; i < array_of(queue->device)->all; i++) device_queue_free(q->members[i]);
    list_remove(&q->node);
    /* Whom a loss was told may have gone on without what it was waiting for. */
    if (queue->device->lost) merge_drop(q);
    merge_until(q, UINT64_MAX);
    mem_free(q->points);
    mem_free(q);
}

static enum status array_queue_new(struct device *d, struct queue **out, struct error *e)
{
    struct array *a = array_of(d);
    struct array_queue *q = mem_zero(sizeof *q);
    enum status s = STATUS_OK;
    unsigned i;

    if (q == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a queue");
    q->queue.device = d;
    q->last_merge = &q->merges;
    list_append(&a->queues, &q->node);
    for (i = 0; i < a->all && s == STATUS_OK; i++) s = device_queue_new(a->members[i], &q->members[i], e);
    if (s != STATUS_OK) {
        array_queue_free(&q->queue);
        return blame(a, i - 1, s);
    }
    *out = &q->queue;
    return STATUS_OK;
}

/* ---- work ------------------------------------------------------------------------------------------------------- */

/* One call over memory of one home, on its way through the parts. */
struct cut {
    struct array *array;
    struct array_queue *queue;
    const struct layout *layout;         /* of the memory that leads; the others lie alike */
    struct merge *merge;                 /* NULL: nothing to put together */
};

static bool lies_alike(struct dmem a, struct dmem b) { return b.size == 0 || a.place.home == b.place.home; }

static enum status refuse_apart(struct queue *q)
{
    return error_set(&q->device->error, REASON_BAD_ARGUMENT, "the memory of one call lies in different places");
}

static enum status cut_begin(struct cut *c, struct queue *q, struct dmem leader)
{
    *c = (struct cut){array_of(q->device), queue_of(q), layout_of(leader), NULL};
    return reserve_point(c->queue);
}

/* Memory in one piece needs none: its member tells the caller itself. */
static enum status merge_new(struct cut *c, uint32_t *flags, struct stats *stats)
{
    size_t count = c->layout->count;
    struct merge *m = count > 1 ? mem_zero(sizeof *m + count * sizeof m->partial[0]) : NULL;

    if (count == 1) return STATUS_OK;
    if (m == NULL) return error_set(&c->array->device.error, REASON_NO_MEMORY, "no memory to queue work");
    *m = (struct merge){.flags = flags, .stats = stats, .count = count};
    c->merge = m;
    return STATUS_OK;
}

static struct queue *queue_of_part(const struct cut *c, size_t part)
{
    return c->queue->members[member_of(c->array, c->layout, part)];
}

/* What the member of a part answered. */
static enum status part_given(struct cut *c, size_t part, enum status s)
{
    unsigned member = member_of(c->array, c->layout, part);

    if (s == STATUS_OK) c->queue->given |= 1u << member;
    return pass(c->array, member, s);
}

static struct dmem part_of(struct dmem m, size_t part)
{
    const struct layout *l = layout_of(m);
    return m.size == 0 ? m : l->parts[part];
}

static size_t part_begin(const struct layout *l, size_t part) { return part == 0 ? 0 : part * l->part_size; }

/* After the last part, or after the first that was refused. What is to be put together is kept until its mark also when
 * the call failed on its way: members may still write there. */
static enum status cut_end(struct cut *c, size_t done, enum status s)
{
    if (c->merge != NULL && done > 0) {
        c->merge->mark = c->queue->queue.mark + 1;
        *c->queue->last_merge = c->merge;
        c->queue->last_merge = &c->merge->next;
    } else {
        mem_free(c->merge);
    }
    return s != STATUS_OK && done > 0 ? lose(c->array) : s;
}

/* Both ways between host and device: the bytes of each part that are within offset.. + size. */
static enum status transfer(struct queue *q, struct dmem m, size_t offset, size_t size, const char *from, char *to)
{
    struct cut c;
    enum status s = cut_begin(&c, q, m);
    size_t done = 0;

    if (s != STATUS_OK) return s;
    for (size_t i = offset / c.layout->part_size, at = offset; at < offset + size && s == STATUS_OK; i++) {
        struct dmem part = c.layout->parts[i];
        size_t inner = at - part_begin(c.layout, i), n = least_of(part.size - inner, offset + size - at);
        s = from != NULL ? device_upload(queue_of_part(&c, i), part, inner, from + (at - offset), n)
                         : device_download(queue_of_part(&c, i), to + (at - offset), part, inner, n);
        s = part_given(&c, i, s);
        if (s == STATUS_OK) done++;
        at += n;
    }
    return cut_end(&c, done, s);
}

static enum status array_upload(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size)
{
    return transfer(q, to, to_offset, size, from, NULL);
}

static enum status array_download(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size)
{
    return transfer(q, from, from_offset, size, NULL, to);
}

/* The other calls: `call` for each part that has some of the `count` elements of `element` bytes. */
struct call {
    struct dmem to, from;
    enum dtype type;
    const struct step *step;
    uint32_t *flags;
    struct stats *stats;
};

/* One part: begin and count say which elements of the whole it has. */
typedef enum status part_function(struct queue *q, const struct call *c, size_t part, size_t begin, size_t count);

/* part_count: elements of a whole part. */
static enum status each_part(struct cut *c, part_function *run, const struct call *call, size_t part_count, size_t count)
{
    enum status s = STATUS_OK;
    size_t done = 0;

    for (size_t i = 0, at = 0; at < count && s == STATUS_OK; i++) {
        struct call mine = *call;
        size_t n = least_of(part_count, count - at);
        if (c->merge != NULL) mine.flags = &c->merge->partial[i].flags, mine.stats = &c->merge->partial[i].stats;
        s = part_given(c, i, run(queue_of_part(c, i), &mine, i, at, n));
        if (s == STATUS_OK) done++;
        at += n;
    }
    return cut_end(c, done, s);
}

static enum status copy_part(struct queue *q, const struct call *c, size_t part, size_t begin, size_t size)
{
    (void)begin;
    return device_copy(q, part_of(c->to, part), part_of(c->from, part), size);
}

static enum status zero_part(struct queue *q, const struct call *c, size_t part, size_t begin, size_t size)
{
    (void)begin;
    return device_zero(q, part_of(c->to, part), size);
}

static enum status widen_part(struct queue *q, const struct call *c, size_t part, size_t begin, size_t count)
{
    (void)begin;
    return device_widen(q, part_of(c->to, part), part_of(c->from, part), c->type, count);
}

static enum status add_part(struct queue *q, const struct call *c, size_t part, size_t begin, size_t count)
{
    (void)begin;
    return device_add(q, part_of(c->to, part), part_of(c->from, part), c->type, count, c->flags);
}

static enum status stats_part(struct queue *q, const struct call *c, size_t part, size_t begin, size_t count)
{
    (void)begin;
    return device_stats(q, part_of(c->to, part), part_of(c->from, part), c->type, count, c->stats);
}

/* Random numbers are counted by element, so a part goes on where the one before ends. */
static enum status step_part(struct queue *q, const struct call *c, size_t part, size_t begin, size_t count)
{
    struct step s = *c->step;

    s.count = count;
    s.sum = part_of(s.sum, part);
    s.last = part_of(s.last, part);
    s.from = part_of(s.from, part);
    s.to = part_of(s.to, part);
    s.master = part_of(s.master, part);
    s.scratch = part_of(s.scratch, part);
    for (unsigned i = 0; i < step_slots(c->step); i++) s.slots[i] = part_of(s.slots[i], part);
    s.stream += begin;
    s.flags = c->flags;
    return device_step(q, &s);
}

/* Bytes of a part of m, for calls that count bytes. */
static size_t bytes_of_part(struct dmem m) { return layout_of(m)->part_size; }

static enum status array_copy(struct queue *q, struct dmem to, struct dmem from, size_t size)
{
    struct cut c;

    if (!mem_place_equal(to.place, from.place)) return refuse_apart(q);
    enum status s = cut_begin(&c, q, to);
    return s != STATUS_OK ? s : each_part(&c, copy_part, &(struct call){.to = to, .from = from}, bytes_of_part(to), size);
}

static enum status array_zero(struct queue *q, struct dmem to, size_t size)
{
    struct cut c;
    enum status s = cut_begin(&c, q, to);

    return s != STATUS_OK ? s : each_part(&c, zero_part, &(struct call){.to = to}, bytes_of_part(to), size);
}

/* Calls that count elements. Whether a piece is cut for elements of the size that the call has for it was settled when it
 * was made; a memory of one piece fits any. */
static size_t elements_of_part(const struct cut *c) { return c->layout->count > 1 ? c->array->part : SIZE_MAX; }

static bool is_cut_for(struct dmem m, size_t element)
{
    return m.size == 0 || !(m.place.home & HOME_IN_PARTS) || m.place.element == element;
}

static enum status array_widen(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count)
{
    struct cut c;

    if (!lies_alike(to, from) || !is_cut_for(to, dtype_size(dtype_sum(type))) || !is_cut_for(from, dtype_size(type)))
        return refuse_apart(q);
    enum status s = cut_begin(&c, q, to);
    if (s != STATUS_OK) return s;
    return each_part(&c, widen_part, &(struct call){.to = to, .from = from, .type = type}, elements_of_part(&c), count);
}

static enum status array_add(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count,
                             uint32_t *flags)
{
    struct cut c;

    if (!lies_alike(to, from) || !is_cut_for(to, dtype_size(dtype_sum(type))) || !is_cut_for(from, dtype_size(type)))
        return refuse_apart(q);
    enum status s = cut_begin(&c, q, to);
    if (s == STATUS_OK) s = merge_new(&c, flags, NULL);
    if (s != STATUS_OK) return s;
    return each_part(&c, add_part, &(struct call){.to = to, .from = from, .type = type, .flags = flags},
                     elements_of_part(&c), count);
}

static enum status array_stats(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                               struct stats *out)
{
    struct cut c;

    if (!lies_alike(a, minus) || !is_cut_for(a, dtype_size(type)) || !is_cut_for(minus, dtype_size(type)))
        return refuse_apart(q);
    enum status s = cut_begin(&c, q, a);
    if (s == STATUS_OK) s = merge_new(&c, NULL, out);
    if (s != STATUS_OK) return s;
    return each_part(&c, stats_part, &(struct call){.to = a, .from = minus, .type = type, .stats = out},
                     elements_of_part(&c), count);
}

static bool step_lies_together(const struct step *s)
{
    size_t one = dtype_size(s->type), sum = dtype_size(dtype_sum(s->type));
    bool together = lies_alike(s->to, s->from) && lies_alike(s->to, s->sum) && lies_alike(s->to, s->last) &&
                    lies_alike(s->to, s->master) && lies_alike(s->to, s->scratch) && is_cut_for(s->to, one) &&
                    is_cut_for(s->from, one) && is_cut_for(s->last, one) && is_cut_for(s->sum, sum) &&
                    is_cut_for(s->master, sum);

    for (unsigned i = 0; i < step_slots(s); i++)
        together = together && lies_alike(s->to, s->slots[i]) && is_cut_for(s->slots[i], sum);
    return together;
}

static enum status array_step(struct queue *q, const struct step *s)
{
    struct cut c;

    if (!step_lies_together(s)) return refuse_apart(q);
    if (rule_is_whole(s->rule) && layout_of(s->to)->count > 1)
        return error_set(&q->device->error, REASON_BAD_ARGUMENT, "rule %s needs the whole value, which lies in %zu parts",
                         rule_name(s->rule), layout_of(s->to)->count);
    enum status st = cut_begin(&c, q, s->to);
    if (st == STATUS_OK) st = merge_new(&c, s->flags, NULL);
    if (st != STATUS_OK) return st;
    return each_part(&c, step_part, &(struct call){.step = s, .flags = s->flags}, elements_of_part(&c), s->count);
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

static void array_programs(struct device *d, struct device_programs *out)
{
    const struct array *a = array_of(d);

    for (unsigned i = 0; i < a->count; i++) {
        struct device_programs one;
        device_programs(a->members[i], &one);
        out->compiled += one.compiled;
        out->interpreted += one.interpreted;
        out->ready += one.ready;
        out->waiting += one.waiting;
        out->refused += one.refused;
        if (out->why[0] == '\0') memcpy(out->why, one.why, sizeof out->why);
    }
}

static void array_close(struct device *d)
{
    struct array *a = array_of(d);

    for (unsigned i = 0; i < a->all; i++) device_free(a->members[i]);
    mem_free(a);
}

/* Who is to be told may be named after the members are there, but before the first work. */
static void member_told(void *ctx)
{
    struct array *a = ctx;
    if (a->device.notify != NULL) a->device.notify(a->device.notify_ctx);
}

static const struct device_ops array_ops = {
    .close = array_close,
    .mem_new = array_mem_new, .mem_new_at = array_mem_new_at, .shared_new = array_shared_new, .mem_free = array_mem_free,
    .trim = array_trim, .cached = array_cached,
    .home_new = array_home_new, .home_keep = array_home_keep, .home_name = array_home_name,
    .pin_new = array_pin_new, .pin_free = array_pin_free,
    .queue_new = array_queue_new, .queue_free = array_queue_free,
    .record = array_record, .await = array_await, .passed = array_passed, .wait = array_wait,
    .upload = array_upload, .download = array_download, .copy = array_copy, .zero = array_zero,
    .widen = array_widen, .add = array_add, .step = array_step, .stats = array_stats, .programs = array_programs,
};

static enum status check(const struct array_config *c, struct error *e)
{
    if (c->count == 0 || c->count > ARRAY_MEMBERS_MAX)
        return error_set(e, REASON_BAD_ARGUMENT, "%u devices; from 1 to %d can be one", c->count, ARRAY_MEMBERS_MAX);
    if (c->part % DMEM_ALIGN != 0)
        return error_set(e, REASON_BAD_ARGUMENT, "parts of %zu elements; it must be a multiple of %d", c->part, DMEM_ALIGN);
    return STATUS_OK;
}

static bool is_array(const struct device *d) { return d->ops->close == array_close; }

unsigned device_members(struct device *d, struct device *out[ARRAY_MEMBERS_MAX])
{
    unsigned count = is_array(d) ? array_of(d)->count : 1;

    for (unsigned i = 0; i < count; i++) out[i] = is_array(d) ? array_of(d)->members[i] : d;
    return count;
}

size_t array_piece_count(struct dmem m) { return is_array(m.device) ? layout_of(m)->count : 1; }

struct array_piece array_piece_at(const struct device *d, struct dmem m, size_t i)
{
    if (!is_array(d)) return (struct array_piece){0, m};
    return (struct array_piece){member_of(array_of(d), layout_of(m), i), layout_of(m)->parts[i]};
}

static void take_member(struct array *a, struct device *m)
{
    a->members[a->all++] = m;
    m->notify = member_told;
    m->notify_ctx = a;
}

enum status array_device_new(const struct array_config *c, struct device **out, struct error *e)
{
    enum status s = check(c, e);
    struct array *a = s == STATUS_OK ? mem_zero(sizeof *a) : NULL;

    if (a == NULL) {
        if (s == STATUS_OK) s = error_set(e, REASON_NO_MEMORY, "no memory for a device of several");
        for (unsigned i = 0; i < c->count; i++) device_free(c->members[i]);
        device_free(c->cpu);
        return s;
    }
    list_init(&a->queues);
    a->ops = array_ops;
    a->ops.kind = a->kind;
    a->device.ops = &a->ops;
    a->device.cpu = c->cpu;
    a->count = c->count;
    a->part = c->part > 0 ? c->part : ARRAY_PART;
    snprintf(a->kind, sizeof a->kind, "%ux%.20s", c->count, c->members[0]->ops->kind);
    memcpy(a->device.card, c->members[0]->card, sizeof a->device.card);
    memcpy(a->device.uuid, c->members[0]->uuid, sizeof a->device.uuid);
    for (unsigned i = 0; i < c->count; i++) take_member(a, c->members[i]);
    if (c->cpu != NULL) take_member(a, c->cpu);
    *out = &a->device;
    return STATUS_OK;
}
