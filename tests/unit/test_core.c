#include "service/core.h"

#include "service/base/mem.h"
#include "tests/lib/test.h"

/* A device that computes nothing: marks pass when the test says so, or at once when it has nothing to do. */
struct told {
    struct queue queue;
    uint64_t passed;
};

static bool busy;

static void told_close(struct device *d) { mem_free(d); }
static enum status told_mem_new(struct device *d, size_t size, struct dmem *out, struct error *e)
{
    *out = (struct dmem){.device = d, .at = mem_new(size), .size = size};
    return out->at != NULL ? STATUS_OK : error_set(e, REASON_NO_MEMORY, "no memory");
}
static void told_mem_free(struct dmem *m) { mem_free(m->at); }
static enum status told_queue_new(struct device *d, struct queue **out, struct error *e)
{
    struct told *q = mem_zero(sizeof *q);

    if (q == NULL) return error_set(e, REASON_NO_MEMORY, "no memory");
    q->queue.device = d;
    *out = &q->queue;
    return STATUS_OK;
}
static void told_queue_free(struct queue *q) { mem_free(q); }
static enum status told_record(struct queue *q, uint64_t *mark)
{
    *mark = q->mark + 1;
    if (!busy) ((struct told *)q)->passed = *mark;
    return STATUS_OK;
}
static enum status told_passed(struct queue *q, uint64_t *mark)
{
    *mark = ((struct told *)q)->passed;
    return STATUS_OK;
}
static enum status told_wait(struct queue *q, uint64_t mark)
{
    ((struct told *)q)->passed = mark;
    return STATUS_OK;
}

static const struct device_ops told_ops = {
    .kind = "told", .close = told_close, .mem_new = told_mem_new, .mem_free = told_mem_free, .queue_new = told_queue_new,
    .queue_free = told_queue_free, .record = told_record, .passed = told_passed, .wait = told_wait};

static struct core core;
static unsigned ran;
static struct task second;

static void count(struct task *t, enum status s)
{
    (void)t;
    CHECK_EQ(s, STATUS_OK);
    ran++;
}

static void line_up_another(struct task *t, enum status s)
{
    count(t, s);
    second.run = count;
    core_after(&core, 0, &second);
}

TEST(a_task_lined_up_behind_others_runs_though_its_mark_passed_at_once)
{
    const uint8_t seed[16] = {1};
    struct task first = {.run = line_up_another}, beside = {.run = count};
    struct device *d = mem_zero(sizeof *d);
    struct error e;

    d->ops = &told_ops;
    CHECK_OK(core_init(&core, d, seed, 1 << 20, 0, &e), &e);
    busy = true;
    core_after(&core, 0, &first);
    core_after(&core, 0, &beside);
    CHECK_EQ(ran, 0);
    core_poll(&core);
    CHECK_EQ(ran, 0);
    ((struct told *)core.queues[0])->passed = beside.mark;
    busy = false; /* what is recorded from now on passes at once, and nobody is told */
    core_poll(&core);
    CHECK_EQ(ran, 3);
    CHECK_EQ(core.task_count, 0);
    core_fini(&core);
    device_free(d);
}
