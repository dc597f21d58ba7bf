#include "tests/lib/late_device.h"

#include "gpu/loops.h"
#include "service/base/list.h"
#include "service/base/mem.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct late_queue {
    struct queue queue;
    struct list_node node;
    struct list items;
    uint64_t passed;
};

struct late {
    struct device device;
    struct list queues;
    size_t pending;
    uint64_t random;
};

/* One call. What its kind does not use is zero. */
struct item {
    struct list_node node;
    void (*run)(const struct item *it);      /* NULL: an await */
    struct late_queue *other;
    uint64_t await, mark;
    struct dmem to, from, minus;
    void *host_to;
    const void *host_from;
    size_t offset, size;                     /* size: bytes, or elements */
    enum dtype type;
    uint32_t *flags;
    struct stats *stats;
    struct step step;
};

/* An address with this bit is none of a process, so whoever reads it without asking the device is stopped. */
#define OUT_OF_REACH ((uintptr_t)1 << 62)

static void *real_address(const void *at) { return (void *)((uintptr_t)at ^ OUT_OF_REACH); }
static struct late *late_of(const struct queue *q) { return (struct late *)q->device; }
static struct late_queue *queue_of(struct queue *q) { return (struct late_queue *)q; }

/* ---- running ---------------------------------------------------------------------------------------------------- */

static bool is_ready(struct late_queue *q)
{
    struct item *it = LIST_FIRST(struct item, node, &q->items);
    return it != NULL && (it->run != NULL || it->other == NULL || it->other->passed >= it->await);
}

static void run_first(struct late *l, struct late_queue *q)
{
    struct item *it = LIST_FIRST(struct item, node, &q->items);

    if (it->run != NULL) it->run(it);
    if (it->mark != 0) q->passed = it->mark;
    list_remove(&it->node);
    mem_free(it);
    l->pending--;
}

/* One item of a queue drawn among those that may go on; false: there is none. */
static bool run_any(struct late *l)
{
    size_t ready = 0, drawn;

    LIST_EACH(struct late_queue, q, node, &l->queues) ready += is_ready(q);
    if (ready == 0) return false;
    drawn = rng_next(&l->random) % ready;
    LIST_EACH(struct late_queue, q, node, &l->queues) {
        if (!is_ready(q) || drawn-- > 0) continue;
        run_first(l, q);
        return true;
    }
    return false;
}

static void remind(struct late *l)
{
    if (l->pending > 0 && l->device.notify != NULL) l->device.notify(l->device.notify_ctx);
}

static enum status late_record(struct queue *queue, uint64_t *mark)
{
    struct late_queue *q = queue_of(queue);

    *mark = queue->mark + 1;
    if (list_empty(&q->items)) q->passed = *mark;
    else CONTAINER_OF(q->items.head.prev, struct item, node)->mark = *mark;
    remind(late_of(queue));
    return STATUS_OK;
}

static enum status late_passed(struct queue *q, uint64_t *mark)
{
    struct late *l = late_of(q);

    for (uint64_t n = rng_next(&l->random) % 4; n > 0 && run_any(l); n--) continue;
    *mark = queue_of(q)->passed;
    remind(l);
    return STATUS_OK;
}

static enum status late_wait(struct queue *q, uint64_t mark)
{
    while (queue_of(q)->passed < mark && run_any(late_of(q))) continue;
    remind(late_of(q));
    return STATUS_OK;
}

/* ---- work ------------------------------------------------------------------------------------------------------- */

static enum status give(struct queue *q, const struct item *what)
{
    struct item *it = mem_new(sizeof *it);

    if (it == NULL) return error_set(&q->device->error, REASON_NO_MEMORY, "no memory to queue late work");
    *it = *what;
    list_append(&queue_of(q)->items, &it->node);
    late_of(q)->pending++;
    return STATUS_OK;
}

static enum status late_await(struct queue *q, struct queue *other, uint64_t mark)
{
    return give(q, &(struct item){.other = queue_of(other), .await = mark});
}

static void run_upload(const struct item *it)
{
    memcpy((char *)real_address(it->to.at) + it->offset, it->host_from, it->size);
}

static void run_download(const struct item *it)
{
    memcpy(it->host_to, (char *)real_address(it->from.at) + it->offset, it->size);
}

static void run_copy(const struct item *it) { memcpy(real_address(it->to.at), real_address(it->from.at), it->size); }
static void run_zero(const struct item *it) { memset(real_address(it->to.at), 0, it->size); }

static void run_widen(const struct item *it)
{
    loops_widen(it->type, real_address(it->to.at), real_address(it->from.at), it->size);
}

static void run_add(const struct item *it)
{
    *it->flags |= loops_add(it->type, real_address(it->to.at), real_address(it->from.at), it->size);
}

static void bring(struct dmem *m)
{
    if (m->size > 0) m->at = real_address(m->at);
}

static void run_step(const struct item *it)
{
    struct step s = it->step;

    bring(&s.sum), bring(&s.last), bring(&s.from), bring(&s.to), bring(&s.master), bring(&s.scratch);
    for (unsigned i = 0; i < step_slots(&s); i++) bring(&s.slots[i]);
    *s.flags |= loops_step(&s, 0, s.count);
}

static void run_stats(const struct item *it)
{
    struct dmem a = it->from, minus = it->minus;

    bring(&a), bring(&minus);
    loops_stats(it->type, a.at, minus.size > 0 ? minus.at : NULL, it->size, it->stats);
}

static enum status late_upload(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size)
{
    return give(q, &(struct item){.run = run_upload, .to = to, .offset = to_offset, .host_from = from, .size = size});
}

static enum status late_download(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size)
{
    return give(q, &(struct item){.run = run_download, .host_to = to, .from = from, .offset = from_offset,
                                  .size = size});
}

static enum status late_copy(struct queue *q, struct dmem to, struct dmem from, size_t size)
{
    return give(q, &(struct item){.run = run_copy, .to = to, .from = from, .size = size});
}

static enum status late_zero(struct queue *q, struct dmem to, size_t size)
{
    return give(q, &(struct item){.run = run_zero, .to = to, .size = size});
}

static enum status late_widen(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count)
{
    return give(q, &(struct item){.run = run_widen, .to = to, .from = from, .type = type, .size = count});
}

static enum status late_add(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count,
                            uint32_t *flags)
{
    return give(q, &(struct item){.run = run_add, .to = to, .from = from, .type = type, .size = count,
                                  .flags = flags});
}

static enum status late_step(struct queue *q, const struct step *s)
{
    return give(q, &(struct item){.run = run_step, .step = *s});
}

static enum status late_stats(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                              struct stats *out)
{
    return give(q, &(struct item){.run = run_stats, .from = a, .minus = minus, .type = type, .size = count,
                                  .stats = out});
}

/* ---- queues, memory, the whole ---------------------------------------------------------------------------------- */

static enum status late_queue_new(struct device *d, struct queue **out, struct error *e)
{
    struct late_queue *q = mem_zero(sizeof *q);

    if (q == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a late queue");
    q->queue.device = d;
    list_init(&q->items);
    list_append(&((struct late *)d)->queues, &q->node);
    *out = &q->queue;
    return STATUS_OK;
}

static void late_queue_free(struct queue *queue)
{
    struct late_queue *gone = queue_of(queue);
    struct late *l = late_of(queue);

    while (!list_empty(&gone->items) && run_any(l)) continue;
    LIST_EACH(struct late_queue, q, node, &l->queues)
        LIST_EACH(struct item, it, node, &q->items)
            if (it->other == gone) it->other = NULL;
    list_remove(&gone->node);
    mem_free(gone);
}

static bool within(struct dmem m, const struct dmem *piece)
{
    return m.size > 0 && (uintptr_t)m.at - (uintptr_t)piece->at < piece->size;
}

/* The host's end of a copy, which may lie in memory that is shared. */
static bool reaches(const void *at, const struct dmem *piece)
{
    return at != NULL && (uintptr_t)at - (uintptr_t)piece->at < piece->size;
}

static bool names(const struct item *it, const struct dmem *m)
{
    const struct step *s = &it->step;
    bool found = within(it->to, m) || within(it->from, m) || within(it->minus, m) || within(s->sum, m) || within(s->last, m) ||
                 within(s->from, m) || within(s->to, m) || within(s->master, m) || within(s->scratch, m) ||
                 reaches(it->host_from, m) || reaches(it->host_to, m);

    for (unsigned i = 0; i < step_slots(s); i++) found = found || within(s->slots[i], m);
    return found;
}

static void late_mem_free(struct dmem *m)
{
    LIST_EACH(struct late_queue, q, node, &((struct late *)m->device)->queues)
        LIST_EACH(struct item, it, node, &q->items)
            if (names(it, m)) {
                fprintf(stderr, "device memory is freed while unfinished work names it\n");
                abort();
            }
    mem_free(m->own != NULL ? m->own : real_address(m->at));
}

static enum status late_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    void *p = mem_aligned(size);

    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no late memory for %zu bytes", size);
    memset(p, 0xa5, size);
    *out = (struct dmem){.device = d, .at = real_address(p), .size = size};
    return STATUS_OK;
}

/* The host reaches it, in place of another process. The handle is its address. */
static enum status late_shared_new(struct device *d, size_t size, struct dmem *out, struct mem_handle *handle,
                                   struct error *e)
{
    void *p = mem_aligned(size);

    if (p == NULL) return error_set(e, REASON_NO_MEMORY, "no shared memory for %zu bytes", size);
    memset(p, 0xa5, size);
    *handle = (struct mem_handle){{0}};
    memcpy(handle->at, &p, sizeof p);
    *out = (struct dmem){.device = d, .at = p, .size = size, .own = p};
    return STATUS_OK;
}

static enum status late_pin_new(struct device *d, size_t size, void **out, struct error *e)
{
    (void)d;
    *out = mem_aligned(size);
    return *out != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no pinned memory for %zu bytes", size);
}

static void late_pin_free(struct device *d, void *pin)
{
    (void)d;
    mem_free(pin);
}

static void late_close(struct device *d) { mem_free(d); }

static const struct device_ops late_ops = {
    .kind = "late", .close = late_close,
    .mem_new = late_mem_new, .shared_new = late_shared_new, .mem_free = late_mem_free,
    .pin_new = late_pin_new, .pin_free = late_pin_free,
    .queue_new = late_queue_new, .queue_free = late_queue_free,
    .record = late_record, .await = late_await, .passed = late_passed, .wait = late_wait,
    .upload = late_upload, .download = late_download, .copy = late_copy, .zero = late_zero,
    .widen = late_widen, .add = late_add, .step = late_step, .stats = late_stats,
};

enum status late_device_new(uint64_t seed, struct device **out, struct error *e)
{
    struct late *l = mem_zero(sizeof *l);

    if (l == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a late device");
    l->device.ops = &late_ops;
    memcpy(l->device.uuid, "late", sizeof "late");
    l->random = seed;
    list_init(&l->queues);
    *out = &l->device;
    return STATUS_OK;
}

size_t late_device_pending(const struct device *d) { return ((const struct late *)d)->pending; }
