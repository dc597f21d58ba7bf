#include "gpu/device.h"

#include "gpu/program.h"
#include "gpu/rules.h"
#include "gpu/whole.h"

#include <assert.h>

void device_free(struct device *d)
{
    if (d == NULL) return;
    assert(d->bytes_held == 0);
    d->ops->close(d);
}

const char *device_kind(const struct device *d) { return d->name[0] != '\0' ? d->name : d->ops->kind; }
const struct error *device_error(const struct device *d) { return &d->error; }

static enum status refuse_lost(struct device *d)
{
    return error_set(&d->error, REASON_DEVICE_LOST, "the %s device is lost%s%s; restart the daemon to use it again",
                     device_kind(d), d->why[0] != '\0' ? ": " : "", d->why);
}

/* What a back end answered, which has said why in d->error: a loss is a reason, whose status others have as well. Once
 * lost, a device stays lost, and says why. */
static enum status settle(struct device *d, enum status s)
{
    if (s == STATUS_OK) return s;
    assert(d->error.status == s);
    if (d->error.reason != REASON_DEVICE_LOST) return s;
    d->lost = true;
    return refuse_lost(d);
}

static enum status settle_work(struct device *d, enum status s)
{
    if (s == STATUS_OK) d->work_count++;
    return settle(d, s);
}

/* For calls that tell their caller: the sentence goes to both. */
static enum status tell(const struct device *d, enum status s, struct error *e)
{
    if (s != STATUS_OK && e != NULL) *e = d->error;
    return s;
}

uint32_t device_home_new(struct device *d, size_t count, bool whole, uint64_t size)
{
    return d->ops->home_new != NULL ? d->ops->home_new(d, count, whole, size) : 0;
}

void device_home_keep(struct device *d, uint32_t home, size_t count, int64_t more)
{
    if (d->ops->home_keep != NULL) d->ops->home_keep(d, home, count, more);
}

const char *device_home_name(const struct device *d, uint32_t home)
{
    return d->ops->home_name != NULL ? d->ops->home_name(d, home) : device_kind(d);
}

static enum status find_memory(struct device *d, size_t size, struct mem_place place, struct dmem *out)
{
    if (place.home == 0) return d->ops->mem_new(d, size, out, &d->error);
    if (d->ops->mem_new_at != NULL) return d->ops->mem_new_at(d, size, place, out, &d->error);
    return error_set(&d->error, REASON_BAD_ARGUMENT, "the %s device has no home %u", d->ops->kind, place.home);
}

enum status device_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    return device_mem_new_at(d, size, (struct mem_place){0}, out, e);
}

enum status device_mem_new_at(struct device *d, size_t size, struct mem_place place, struct dmem *out, struct error *e)
{
    struct dmem m;

    if (d->lost) return tell(d, refuse_lost(d), e);
    enum status s = settle(d, find_memory(d, size > 0 ? size : 1, place, &m));
    if (s != STATUS_OK) return tell(d, s, e);
    m.place = place;
    d->bytes_held += m.size;
    *out = m;
    return STATUS_OK;
}

enum status device_shared_new(struct device *d, size_t size, struct dmem *out, struct mem_handle *handle,
                              struct error *e)
{
    struct dmem m;

    if (d->lost) return tell(d, refuse_lost(d), e);
    if (d->ops->shared_new == NULL)
        return tell(d, error_set(&d->error, REASON_UNIMPLEMENTED, "memory of the %s device cannot be shared with another "
                                 "process; that needs a GPU", device_kind(d)), e);
    enum status s = settle(d, d->ops->shared_new(d, size > 0 ? size : 1, &m, handle, &d->error));
    if (s != STATUS_OK) return tell(d, s, e);
    d->bytes_held += m.size;
    *out = m;
    return STATUS_OK;
}

void device_mem_free(struct dmem *m)
{
    if (m->device == NULL) return;
    m->device->bytes_held -= m->size;
    m->device->ops->mem_free(m);
    *m = (struct dmem){0};
}

void device_keep_memory(struct device *d, bool keep)
{
    if (d->ops->keep_memory != NULL) d->ops->keep_memory(d, keep);
}

void device_trim(struct device *d)
{
    if (d->ops->trim != NULL && !d->lost) d->ops->trim(d);
}

uint64_t device_cached(const struct device *d) { return d->ops->cached != NULL ? d->ops->cached(d) : 0; }

enum status device_pin_new(struct device *d, size_t size, void **out, struct error *e)
{
    if (d->lost) return tell(d, refuse_lost(d), e);
    return tell(d, settle(d, d->ops->pin_new(d, size > 0 ? size : 1, out, &d->error)), e);
}

void device_pin_free(struct device *d, void *pin)
{
    if (pin != NULL) d->ops->pin_free(d, pin);
}

enum status device_queue_new(struct device *d, struct queue **out, struct error *e)
{
    if (d->lost) return tell(d, refuse_lost(d), e);
    return tell(d, settle(d, d->ops->queue_new(d, out, &d->error)), e);
}

void device_queue_free(struct queue *q)
{
    if (q != NULL) q->device->ops->queue_free(q);
}

enum status device_record(struct queue *q, uint64_t *mark)
{
    uint64_t got = 0;

    if (q->device->lost) return refuse_lost(q->device);
    enum status s = settle(q->device, q->device->ops->record(q, &got));
    if (s == STATUS_OK) *mark = q->mark = got;
    return s;
}

static enum status check_mark(struct queue *q, const struct queue *of, uint64_t mark)
{
    struct device *d = q->device;

    if (d->lost) return refuse_lost(d);
    if (of->device != d) return error_set(&d->error, REASON_BAD_ARGUMENT, "the other queue is of another device");
    if (mark <= of->mark) return STATUS_OK;
    return error_set(&d->error, REASON_BAD_ARGUMENT, "mark %llu is not recorded yet; the last one is %llu",
                     (unsigned long long)mark, (unsigned long long)of->mark);
}

enum status device_await(struct queue *q, struct queue *other, uint64_t mark)
{
    enum status s = check_mark(q, other, mark);

    /* A queue is in order with itself. */
    if (s != STATUS_OK || q == other || mark == 0) return s;
    return settle(q->device, q->device->ops->await(q, other, mark));
}

enum status device_passed(struct queue *q, uint64_t *mark)
{
    if (q->device->lost) return refuse_lost(q->device);
    return settle(q->device, q->device->ops->passed(q, mark));
}

enum status device_wait(struct queue *q, uint64_t mark)
{
    enum status s = check_mark(q, q, mark);

    return s != STATUS_OK || mark == 0 ? s : settle(q->device, q->device->ops->wait(q, mark));
}

/* ---- work: what is common to all devices is checked here, once -------------------------------------------------- */

static enum status refuse_piece(struct device *d, const char *what, const char *fault)
{
    return error_set(&d->error, REASON_BAD_ARGUMENT, "'%s' %s", what, fault);
}

/* `size` bytes from `offset` of a piece of this device. */
static enum status check_bytes(struct device *d, const char *what, struct dmem m, size_t offset, size_t size)
{
    if (m.device != d) return refuse_piece(d, what, m.device == NULL ? "is no memory" : "is of another device");
    if (m.at == NULL) return refuse_piece(d, what, "is no memory");
    if (offset > m.size || size > m.size - offset) return refuse_piece(d, what, "is smaller than what is asked of it");
    return STATUS_OK;
}

/* Bytes of so many elements; SIZE_MAX, which no piece has, when they are too many to be told. */
static size_t size_of(enum dtype type, size_t count)
{
    return count <= SIZE_MAX / sizeof(double) ? count * dtype_size(type) : SIZE_MAX;
}

static bool is_aligned(const void *at, enum dtype type) { return ((uintptr_t)at & (dtype_size(type) - 1)) == 0; }

/* `size` is size_of what is asked for. */
static bool has_elements(const struct device *d, const struct dmem *m, enum dtype type, size_t size)
{
    return m->device == d && m->at != NULL && size <= m->size && is_aligned(m->at, type);
}

static enum status check_elements(struct device *d, const char *what, const struct dmem *m, enum dtype type, size_t size)
{
    if (has_elements(d, m, type, size)) return STATUS_OK;
    if (m->device == d && size > m->size) return refuse_piece(d, what, "has fewer elements than are asked of it");
    if (!is_aligned(m->at, type)) return refuse_piece(d, what, "is not aligned to its type");
    return check_bytes(d, what, *m, 0, size);
}

static bool overlap(const struct dmem *a, size_t a_size, const struct dmem *b, size_t b_size)
{
    uintptr_t x = (uintptr_t)a->at, y = (uintptr_t)b->at;
    return x < y ? y - x < a_size : x - y < b_size;
}

static enum status check_type(struct device *d, enum dtype type)
{
    if (dtype_known(type)) return STATUS_OK;
    return error_set(&d->error, REASON_BAD_ARGUMENT, "%d is no dtype", (int)type);
}

enum status device_upload(struct queue *q, struct dmem to, size_t to_offset, const void *from, size_t size)
{
    struct device *d = q->device;
    enum status s;

    if (d->lost) return refuse_lost(d);
    if (size == 0) return STATUS_OK;
    if (from == NULL) return refuse_piece(d, "from", "is NULL");
    s = check_bytes(d, "to", to, to_offset, size);
    return s != STATUS_OK ? s : settle_work(d, d->ops->upload(q, to, to_offset, from, size));
}

enum status device_download(struct queue *q, void *to, struct dmem from, size_t from_offset, size_t size)
{
    struct device *d = q->device;
    enum status s;

    if (d->lost) return refuse_lost(d);
    if (size == 0) return STATUS_OK;
    if (to == NULL) return refuse_piece(d, "to", "is NULL");
    s = check_bytes(d, "from", from, from_offset, size);
    return s != STATUS_OK ? s : settle_work(d, d->ops->download(q, to, from, from_offset, size));
}

enum status device_copy(struct queue *q, struct dmem to, struct dmem from, size_t size)
{
    struct device *d = q->device;
    enum status s;

    if (d->lost) return refuse_lost(d);
    if (size == 0) return STATUS_OK;
    s = check_bytes(d, "to", to, 0, size);
    if (s == STATUS_OK) s = check_bytes(d, "from", from, 0, size);
    if (s == STATUS_OK && overlap(&to, size, &from, size)) s = refuse_piece(d, "to", "overlaps 'from'");
    return s != STATUS_OK ? s : settle_work(d, d->ops->copy(q, to, from, size));
}

enum status device_zero(struct queue *q, struct dmem to, size_t size)
{
    struct device *d = q->device;
    enum status s;

    if (d->lost) return refuse_lost(d);
    if (size == 0) return STATUS_OK;
    s = check_bytes(d, "to", to, 0, size);
    return s != STATUS_OK ? s : settle_work(d, d->ops->zero(q, to, size));
}

/* widen and add: to in dtype_sum(type), from in type. */
static enum status check_sum(struct device *d, struct dmem to, struct dmem from, enum dtype type, size_t count)
{
    enum status s = check_type(d, type);

    if (s != STATUS_OK || count == 0) return s;
    size_t to_size = size_of(dtype_sum(type), count), from_size = size_of(type, count);
    s = check_elements(d, "to", &to, dtype_sum(type), to_size);
    if (s == STATUS_OK) s = check_elements(d, "from", &from, type, from_size);
    if (s == STATUS_OK && overlap(&to, to_size, &from, from_size))
        s = refuse_piece(d, "to", "overlaps 'from'");
    return s;
}

enum status device_widen(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count)
{
    struct device *d = q->device;

    enum status s = d->lost ? refuse_lost(d) : check_sum(d, to, from, type, count);
    return s != STATUS_OK || count == 0 ? s : settle_work(d, d->ops->widen(q, to, from, type, count));
}

enum status device_add(struct queue *q, struct dmem to, struct dmem from, enum dtype type, size_t count,
                       uint32_t *flags)
{
    struct device *d = q->device;

    enum status s = d->lost ? refuse_lost(d) : check_sum(d, to, from, type, count);
    if (s == STATUS_OK && flags == NULL) s = refuse_piece(d, "flags", "is NULL");
    return s != STATUS_OK || count == 0 ? s : settle_work(d, d->ops->add(q, to, from, type, count, flags));
}

struct operand {
    const char *name;
    const struct dmem *m;
    enum dtype type;
    enum { READ, WRITTEN, SLOT } use;
    size_t size;                 /* bytes that are looked at */
};

enum { OPERANDS_MAX = 6 + STEP_SLOTS_MAX };

unsigned step_slots(const struct step *s)
{
    return s->rule == RULE_program ? s->program->slot_count : rule_slots(s->rule);
}

size_t step_scratch_size(enum rule_id r, size_t count) { return whole_scratch_size(r, count); }

static unsigned step_operands(const struct step *s, struct operand *o)
{
    static const char *const slot_names[STEP_SLOTS_MAX] = {"slots[0]", "slots[1]", "slots[2]", "slots[3]",
                                                              "slots[4]", "slots[5]", "slots[6]", "slots[7]"};
    enum dtype sum = dtype_sum(s->type);
    size_t size = size_of(s->type, s->count), sum_size = size_of(sum, s->count);
    size_t scratch = step_scratch_size(s->rule, s->count);
    unsigned n = 0;

    o[n++] = (struct operand){"to", &s->to, s->type, WRITTEN, size};
    o[n++] = (struct operand){"from", &s->from, s->type, READ, size};
    if (s->sum.size > 0) o[n++] = (struct operand){"sum", &s->sum, sum, READ, sum_size};
    if (s->last.size > 0) o[n++] = (struct operand){"last", &s->last, s->type, READ, size};
    if (s->master.size > 0) o[n++] = (struct operand){"master", &s->master, sum, SLOT, sum_size};
    if (scratch > 0) o[n++] = (struct operand){"scratch", &s->scratch, DTYPE_f64, SLOT, scratch};
    for (unsigned i = 0; i < step_slots(s); i++)
        o[n++] = (struct operand){slot_names[i], &s->slots[i], sum, SLOT,
                                  size_of(sum, rule_slot_count(s->rule, i, s->count, s->columns))};
    return n;
}

/* Two that are only read may be anything to one another; `to` may be one of them, whole; a slot is for itself. */
static bool may_stand_together(const struct operand *a, const struct operand *b)
{
    if (!overlap(a->m, a->size, b->m, b->size)) return true;
    return a->use == WRITTEN && b->use == READ && a->m->at == b->m->at && a->type == b->type;
}

static enum status check_operands(struct device *d, const struct step *s)
{
    struct operand o[OPERANDS_MAX];
    unsigned n = step_operands(s, o);

    for (unsigned i = 0; i < n; i++) {
        enum status st = check_elements(d, o[i].name, o[i].m, o[i].type, o[i].size);
        if (st != STATUS_OK) return st;
        /* `to` comes first, what is only read next. */
        for (unsigned j = 0; j < (o[i].use == READ ? 1 : i); j++)
            if (!may_stand_together(&o[j], &o[i]))
                return refuse_piece(d, o[i].name, "overlaps another operand of the step");
    }
    return STATUS_OK;
}

/* What nearly every small push is: one gradient, no state, and a buffer of its own for the result. */
static bool is_simple(const struct device *d, const struct step *s)
{
    size_t size = size_of(s->type, s->count);

    return s->sum.size == 0 && s->master.size == 0 && step_slots(s) == 0 && !rule_is_whole(s->rule) &&
           has_elements(d, &s->to, s->type, size) && has_elements(d, &s->from, s->type, size) &&
           has_elements(d, &s->last, s->type, size) && !overlap(&s->to, size, &s->from, size) &&
           !overlap(&s->to, size, &s->last, size);
}

static bool contributors_known(double n) { return n >= 1 && n <= (double)UINT32_MAX; }

static enum status check_step(struct device *d, const struct step *s)
{
    enum status st = check_type(d, s->type);

    if (st != STATUS_OK) return st;
    if ((unsigned)s->rule >= RULES_END || (s->rule == RULE_program) != (s->program != NULL))
        return refuse_piece(d, "rule", "is none");
    if (dtype_is_integer(s->type) && !rule_takes_integers(s->rule))
        return error_set(&d->error, REASON_BAD_ARGUMENT, "rule %s needs fractions, which %s values do not have",
                         rule_name(s->rule), dtype_name(s->type));
    if (s->master.size > 0 && !dtype_is_half(s->type))
        return refuse_piece(d, "master", "is for f16 and bf16 values");
    if (s->rule == RULE_average && !contributors_known(s->scalars.v[AVERAGE_CONTRIBUTORS]))
        return refuse_piece(d, "scalars", "name no contributors");
    if (s->flags == NULL) return refuse_piece(d, "flags", "is NULL");
    if (s->count == 0) return STATUS_OK;
    if (rule_has_rows(s->rule) && (s->columns == 0 || s->count % s->columns != 0))
        return refuse_piece(d, "columns", "do not divide the elements into rows");
    if (s->sum.size == 0 && s->last.size == 0) return refuse_piece(d, "sum", "and 'last' are both left out");
    return is_simple(d, s) ? STATUS_OK : check_operands(d, s);
}

enum status device_step(struct queue *q, const struct step *s)
{
    struct device *d = q->device;

    enum status st = d->lost ? refuse_lost(d) : check_step(d, s);
    return st != STATUS_OK || s->count == 0 ? st : settle_work(d, d->ops->step(q, s));
}

enum status device_stats(struct queue *q, struct dmem a, struct dmem minus, enum dtype type, size_t count,
                         struct stats *out)
{
    struct device *d = q->device;

    enum status s = d->lost ? refuse_lost(d) : check_type(d, type);
    if (s == STATUS_OK && out == NULL) s = refuse_piece(d, "out", "is NULL");
    if (s == STATUS_OK && count == 0) stats_clear(out);
    if (s != STATUS_OK || count == 0) return s;
    s = check_elements(d, "a", &a, type, size_of(type, count));
    if (s == STATUS_OK && minus.size > 0) s = check_elements(d, "minus", &minus, type, size_of(type, count));
    return s != STATUS_OK ? s : settle_work(d, d->ops->stats(q, a, minus, type, count, out));
}

enum status device_queue_call(struct queue *q, queue_function *run, void *ctx)
{
    struct device *d = q->device;

    if (d->lost) return refuse_lost(d);
    if (d->ops->queue_call == NULL)
        return error_set(&d->error, REASON_UNIMPLEMENTED, "a queue of the %s device is no stream", device_kind(d));
    return settle_work(d, d->ops->queue_call(q, run, ctx));
}

void device_programs(struct device *d, struct device_programs *out)
{
    *out = (struct device_programs){0};
    if (d->ops->programs != NULL) d->ops->programs(d, out);
}
