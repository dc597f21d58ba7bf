#include "tests/lib/faulty_device.h"

#include "service/base/mem.h"

#include <string.h>

struct faulty {
    struct device device;
    struct device *inner;
    uint64_t countdown;
    enum fault_mode mode;
    bool hit, dying;
};

struct faulty_queue {
    struct queue queue;
    struct queue *inner;
};

static struct faulty *faulty_of(struct device *d) { return (struct faulty *)d; }
static struct queue *inner_of(struct queue *q) { return ((struct faulty_queue *)q)->inner; }

static struct dmem inside(struct dmem m)
{
    if (m.device != NULL) m.device = faulty_of(m.device)->inner;
    return m;
}

enum call { MEMORY, MARK, OTHER };

static bool counts(enum fault_mode mode, enum call c)
{
    switch (mode) {
    case FAULT_MEMORY: return c == MEMORY;
    case FAULT_SYSTEM: return c != MARK;
    case FAULT_SYSTEM_MARK: return c == MARK;
    case FAULT_REFUSED:
    case FAULT_ACCEPTED: break;
    }
    return true;
}

static bool strikes(struct device *d, enum call c)
{
    struct faulty *f = faulty_of(d);

    if (!counts(f->mode, c) || f->countdown == 0 || --f->countdown > 0) return false;
    return f->hit = true;
}

static bool is_system(const struct device *d)
{
    enum fault_mode mode = ((const struct faulty *)d)->mode;
    return mode == FAULT_SYSTEM || mode == FAULT_SYSTEM_MARK;
}

static enum status refused(const struct device *d, struct error *e)
{
    if (is_system(d)) return error_set(e, REASON_SYSTEM, "a test wants the system to refuse");
    return error_set(e, REASON_DEVICE_LOST, "a test wants the device lost");
}

static enum status refused_memory(const struct device *d, const char *what, size_t size, struct error *e)
{
    return is_system(d) ? refused(d, e) : error_set(e, REASON_NO_MEMORY, "a test wants no %s for %zu bytes", what, size);
}

/* What the inner device refused is told as this device's. */
static enum status pass(struct device *d, enum status s)
{
    if (s != STATUS_OK) d->error = *device_error(faulty_of(d)->inner);
    return s;
}

static enum status faulty_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    if (strikes(d, MEMORY)) return refused_memory(d, "device memory", size, e);
    enum status s = device_mem_new(faulty_of(d)->inner, size, out, e);
    if (s == STATUS_OK) out->device = d;
    return s;
}

static enum status faulty_shared_new(struct device *d, size_t size, struct dmem *out, struct mem_handle *handle,
                                     struct error *e)
{
    if (strikes(d, OTHER)) return refused_memory(d, "shared memory", size, e);
    enum status s = device_shared_new(faulty_of(d)->inner, size, out, handle, e);
    if (s == STATUS_OK) out->device = d;
    return s;
}

static void faulty_mem_free(struct dmem *m)
{
    struct dmem inner = inside(*m);
    device_mem_free(&inner);
}

static enum status faulty_pin_new(struct device *d, size_t size, void **out, struct error *e)
{
    if (strikes(d, MEMORY)) return refused_memory(d, "pinned memory", size, e);
    return device_pin_new(faulty_of(d)->inner, size, out, e);
}

static void faulty_pin_free(struct device *d, void *pin) { device_pin_free(faulty_of(d)->inner, pin); }

static enum status faulty_queue_new(struct device *d, struct queue **out, struct error *e)
{
    struct faulty_queue *q;

    if (strikes(d, OTHER)) return refused(d, e);
    q = mem_zero(sizeof *q);
    if (q == NULL) return error_set(e, REASON_NO_MEMORY, "no memory for a faulty queue");
    enum status s = device_queue_new(faulty_of(d)->inner, &q->inner, e);
    if (s != STATUS_OK) {
        mem_free(q);
        return s;
    }
    q->queue.device = d;
    *out = &q->queue;
    return STATUS_OK;
}

static void faulty_queue_free(struct queue *q)
{
    device_queue_free(inner_of(q));
    mem_free(q);
}

static enum status faulty_record(struct queue *q, uint64_t *mark)
{
    struct device *d = q->device;
    return strikes(d, MARK) ? refused(d, &d->error) : pass(d, device_record(inner_of(q), mark));
}

static enum status faulty_await(struct queue *q, struct queue *other, uint64_t mark)
{
    struct device *d = q->device;
    return strikes(d, OTHER) ? refused(d, &d->error) : pass(d, device_await(inner_of(q), inner_of(other), mark));
}

static enum status faulty_passed(struct queue *q, uint64_t *mark)
{
    struct device *d = q->device;
    if (strikes(d, MARK) || faulty_of(d)->dying) return refused(d, &d->error);
    return pass(d, device_passed(inner_of(q), mark));
}

static enum status faulty_wait(struct queue *q, uint64_t mark)
{
    struct device *d = q->device;
    if (strikes(d, MARK) || faulty_of(d)->dying) return refused(d, &d->error);
    return pass(d, device_wait(inner_of(q), mark));
}

/* Work: done, refused, or accepted by a device that from then on does nothing. */
#define WORK(q, call)                                                           \
    do {                                                                        \
        struct device *d = (q)->device;                                         \
        struct faulty *f = faulty_of(d);                                        \
        if (strikes(d, OTHER)) {                                                \
            if (f->mode != FAULT_ACCEPTED) return refused(d, &d->error);        \
            f->dying = true;                                                    \
        }                                                                       \
        return f->dying ? STATUS_OK : pass(d, call);                            \
    } while (0)

static enum status faulty_upload(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size)
{
    WORK(q, device_upload(inner_of(q), inside(to), to_offset, from, size));
}

static enum status faulty_download(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size)
{
    WORK(q, device_download(inner_of(q), to, inside(from), from_offset, size));
}

static enum status faulty_copy(struct queue *q, struct dmem to, struct dmem from, size_t size)
{
    WORK(q, device_copy(inner_of(q), inside(to), inside(from), size));
}

static enum status faulty_zero(struct queue *q, struct dmem to, size_t size)
{
    WORK(q, device_zero(inner_of(q), inside(to), size));
}

static enum status faulty_widen(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count)
{
    WORK(q, device_widen(inner_of(q), inside(to), inside(from), type, count));
}

static enum status faulty_add(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count,
                              uint32_t *flags)
{
    WORK(q, device_add(inner_of(q), inside(to), inside(from), type, count, flags));
}

static enum status faulty_step(struct queue *q, const struct step *s)
{
    struct step in = *s;

    in.sum = inside(s->sum), in.last = inside(s->last), in.from = inside(s->from), in.to = inside(s->to);
    in.master = inside(s->master), in.scratch = inside(s->scratch);
    for (unsigned i = 0; i < step_slots(s); i++) in.slots[i] = inside(s->slots[i]);
    WORK(q, device_step(inner_of(q), &in));
}

static enum status faulty_stats(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                                struct stats *out)
{
    WORK(q, device_stats(inner_of(q), inside(a), inside(minus), type, count, out));
}

static enum status faulty_queue_call(struct queue *q, queue_function *run, void *ctx)
{
    struct device *d = q->device;
    struct faulty *f = faulty_of(d);

    if (strikes(d, OTHER)) {
        if (f->mode != FAULT_ACCEPTED) return refused(d, &d->error);
        f->dying = true;
    }
    if (!f->dying) return pass(d, device_queue_call(inner_of(q), run, ctx));
    run(ctx, NULL);
    return STATUS_OK;
}

static void faulty_keep_memory(struct device *d, bool keep) { device_keep_memory(faulty_of(d)->inner, keep); }

static void faulty_trim(struct device *d) { device_trim(faulty_of(d)->inner); }

static uint64_t faulty_cached(const struct device *d) { return device_cached(((const struct faulty *)d)->inner); }

static void tell_outer(void *ctx)
{
    struct device *d = ctx;
    if (d->notify != NULL) d->notify(d->notify_ctx);
}

static void faulty_close(struct device *d)
{
    device_free(faulty_of(d)->inner);
    mem_free(d);
}

static const struct device_ops faulty_ops = {
    .kind = "faulty", .close = faulty_close,
    .mem_new = faulty_mem_new, .shared_new = faulty_shared_new, .mem_free = faulty_mem_free,
    .pin_new = faulty_pin_new, .pin_free = faulty_pin_free,
    .queue_new = faulty_queue_new, .queue_free = faulty_queue_free,
    .record = faulty_record, .await = faulty_await, .passed = faulty_passed, .wait = faulty_wait,
    .upload = faulty_upload, .download = faulty_download, .copy = faulty_copy, .zero = faulty_zero,
    .widen = faulty_widen, .add = faulty_add, .step = faulty_step, .stats = faulty_stats, .queue_call = faulty_queue_call,
    .keep_memory = faulty_keep_memory, .trim = faulty_trim, .cached = faulty_cached,
};

enum status faulty_device_new(struct device *inner, struct device **out, struct error *e)
{
    struct faulty *f = mem_zero(sizeof *f);

    if (f == NULL) {
        device_free(inner);
        return error_set(e, REASON_NO_MEMORY, "no memory for a faulty device");
    }
    f->device.ops = &faulty_ops;
    f->inner = inner;
    memcpy(f->device.uuid, inner->uuid, sizeof f->device.uuid);
    inner->notify = tell_outer;
    inner->notify_ctx = &f->device;
    *out = &f->device;
    return STATUS_OK;
}

void faulty_device_fail_at(struct device *d, uint64_t n, enum fault_mode mode)
{
    struct faulty *f = faulty_of(d);

    f->countdown = n;
    f->mode = mode;
    f->hit = false;
}

bool faulty_device_hit(const struct device *d) { return ((const struct faulty *)d)->hit; }
