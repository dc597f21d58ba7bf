#include "service/core.h"

#include "api/limits.h"
#include "service/account.h"
#include "service/base/mem.h"
#include "service/plane.h"
#include "service/staging.h"
#include "service/store.h"
#include "service/wait.h"
#include "service/watch.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

enum {
    CACHE_FROM = 64 << 10,           /* buffers below this come from malloc's own lists fast enough */
    CACHE_REST_MS = 10000,           /* so long a buffer waits for its next use */
    TRIM_FROM = 1 << 20,             /* bytes freed on the device, below which it is not worth a look */
    TRIM_BLOCKS_FROM = 4096          /* the same in blocks of the daemon */
};

static uint64_t quarter_of_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages / 4 * (uint64_t)size : MIB(1024);
}

enum status core_init(struct core *c, struct device *d, const uint8_t seed[16], uint64_t staging_max, uint64_t now_ms,
                      struct error *e)
{
    enum status s = STATUS_OK;

    *c = (struct core){.now_ms = now_ms, .device = d, .next_store = 1, .next_key = 1, .next_creation = 1, .next_ticket = 1,
                       .next_stamp = 1, .next_copy = 1};
    memcpy(c->seed, seed, sizeof c->seed);
    c->staging_max = staging_max > 0 ? staging_max : quarter_of_memory();
    c->counted = PUSH_NOW_SIZE; /* of the small push */
    list_init(&c->stagings);
    list_init(&c->leavings);
    list_init(&c->watches);
    list_init(&c->planes);
    list_init(&c->waits);
    list_init(&c->decided);
    list_init(&c->jobs);
    c->work_until = UINT64_MAX;
    for (unsigned i = 0; i < CORE_QUEUES; i++) list_init(&c->tasks[i]);
    c->stores = map_new(seed);
    c->stores_by_id = map_new(seed);
    if (c->stores == NULL || c->stores_by_id == NULL) s = error_set(e, REASON_NO_MEMORY, "no memory for the stores");
    for (unsigned i = 0; i < CORE_QUEUES && s == STATUS_OK; i++) s = device_queue_new(d, &c->queues[i], e);
    if (s != STATUS_OK) core_fini(c);
    return s;
}

void core_set_limits(struct core *c, uint64_t staging_max, const struct core_limits *limits)
{
    c->staging_max = staging_max > 0 ? staging_max : quarter_of_memory();
    c->limits = *limits;
}

/* Takes buffer i out of the cache. */
static struct dmem cache_take(struct core *c, size_t i)
{
    struct dmem m = c->cache[i].mem;

    memmove(&c->cache[i], &c->cache[i + 1], (--c->cache_count - i) * sizeof c->cache[0]);
    c->cache_bytes -= m.size;
    return m;
}

static void give_to_device(struct core *c, struct dmem *m)
{
    c->freed += m->size;
    device_mem_free(m);
}

/* Frees those that were last used before this time. */
static void cache_clear(struct core *c, uint64_t before_ms)
{
    while (c->cache_count > 0 && c->cache[0].since_ms < before_ms) {
        struct dmem m = cache_take(c, 0);
        give_to_device(c, &m);
    }
}

void core_fini(struct core *c)
{
    if (c->stores != NULL && c->stores_by_id != NULL) {
        size_t at = 0;
        for (struct store *s; (s = map_next(c->stores, &at)) != NULL; at = 0) store_delete(s);
    }
    for (unsigned i = 0; i < CORE_QUEUES; i++) {
        if (c->queues[i] == NULL) continue;
        core_settle(c);
        device_queue_free(c->queues[i]);
    }
    small_push_free(c);
    sums_free(c->sums);
    mem_free(c->nccl_own);
    cache_clear(c, UINT64_MAX);
    map_free(c->stores);
    map_free(c->stores_by_id);
    memset(c, 0, sizeof *c);
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What has been freed goes back to the system after a while, not at once: most of it is soon wanted again. */
static uint64_t memory_tick(struct core *c)
{
    int64_t blocks = mem_live();

    cache_clear(c, c->now_ms > CACHE_REST_MS ? c->now_ms - CACHE_REST_MS : 0);
    if (blocks > c->blocks_most) c->blocks_most = blocks;
    if (c->freed < TRIM_FROM && c->blocks_most - blocks < TRIM_BLOCKS_FROM) c->trim_ms = 0;
    else if (c->trim_ms == 0) c->trim_ms = c->now_ms + CACHE_REST_MS;
    else if (c->now_ms >= c->trim_ms) {
        device_trim(c->device);
        mem_trim();
        c->trims++;
        c->freed = c->trim_ms = 0;
        c->blocks_most = blocks;
    }
    return earlier(c->trim_ms > 0 ? c->trim_ms : UINT64_MAX,
                   c->cache_count > 0 ? c->cache[0].since_ms + CACHE_REST_MS + 1 : UINT64_MAX);
}

uint64_t core_tick(struct core *c, uint64_t now_ms)
{
    uint64_t next = UINT64_MAX;
    size_t at = 0;

    if (now_ms > c->now_ms) c->now_ms = now_ms;
    if (!c->embedded) {
        staging_expire(c, c->now_ms > PROGRESS_MS ? c->now_ms - PROGRESS_MS : 0);
        if (!list_empty(&c->stagings)) next = c->now_ms + 1000;
        for (struct store *s; (s = map_next(c->stores, &at)) != NULL;) next = earlier(next, store_tick(s, c->now_ms));
    }
    next = earlier(next, planes_tick(c));
    next = earlier(next, watches_tick(c));
    next = earlier(next, memory_tick(c));
    return earlier(next, waits_tick(c, c->now_ms));
}

/* ---- pieces of work --------------------------------------------------------------------------------------------- */

static void go_on(struct core *c, struct job *j)
{
    list_remove(&j->node);
    if (!j->run(j)) list_append(&c->jobs, &j->node);
}

void core_begin(struct core *c, struct job *j)
{
    if (!j->run(j)) list_append(&c->jobs, &j->node);
}

void core_turn(struct core *c)
{
    size_t count = 0;

    if (c->work - c->turn_began > c->turn_work_max) c->turn_work_max = c->work - c->turn_began;
    c->turn_began = c->work;
    c->work_until = c->work + JOB_WORK;
    LIST_EACH(struct job, j, node, &c->jobs) count++;
    for (; count > 0 && !list_empty(&c->jobs) && !core_is_spent(c); count--)
        go_on(c, LIST_FIRST(struct job, node, &c->jobs));
    if (c->unpolled) core_poll(c);
    c->work_until = c->work + TURN_WORK;
}

/* ---- work of the device ----------------------------------------------------------------------------------------- */

void core_after(struct core *c, unsigned index, struct task *t)
{
    uint64_t passed = 0;

    if (list_empty(&c->tasks[index]) && device_idle(c->queues[index])) {
        t->run(t, STATUS_OK);
        return;
    }
    enum status s = device_record(c->queues[index], &t->mark);

    if (s == STATUS_OK) s = device_passed(c->queues[index], &passed);
    if (s != STATUS_OK || (passed >= t->mark && list_empty(&c->tasks[index]))) {
        t->run(t, s);
        return;
    }
    list_append(&c->tasks[index], &t->node);
    c->task_count++;
}

void core_why(const struct core *c, const char *what, struct error *e)
{
    if (c->device->lost) error_set(e, REASON_DEVICE_LOST, "the device was lost while %s", what);
    else *e = *device_error(c->device);
}

void core_quiet(struct core *c, unsigned index)
{
    uint64_t mark = 0;

    if (device_record(c->queues[index], &mark) == STATUS_OK) (void)!device_wait(c->queues[index], mark);
}

/* Runs what has passed; a task may line up new ones behind. */
static void run_passed(struct core *c, unsigned index, uint64_t passed, enum status s)
{
    for (struct task *t; (t = LIST_FIRST(struct task, node, &c->tasks[index])) != NULL;) {
        if (s == STATUS_OK && t->mark > passed) return;
        list_remove(&t->node);
        c->task_count--;
        core_spend(c, 1);
        t->run(t, s);
        if (core_is_spent(c) && !list_empty(&c->tasks[index])) {
            c->unpolled = true;
            return;
        }
    }
}

/* A task may line up another behind others that wait, whose mark has passed at once: the device tells nobody of it, so
 * it is looked for until nothing more has passed. */
static void poll_queue(struct core *c, unsigned index)
{
    for (struct task *t; (t = LIST_FIRST(struct task, node, &c->tasks[index])) != NULL;) {
        uint64_t passed = 0;
        enum status s = device_passed(c->queues[index], &passed);
        if (s == STATUS_OK && t->mark > passed) return;
        run_passed(c, index, passed, s);
        if (c->unpolled) return;
    }
}

void core_poll(struct core *c)
{
    c->unpolled = false;
    for (unsigned i = 0; i < CORE_QUEUES; i++) poll_queue(c, (i + c->first_queue) % CORE_QUEUES);
    if (c->unpolled) c->first_queue++; /* each queue comes to be first */
    planes_poll(c);
}

void core_settle(struct core *c)
{
    uint64_t until = c->work_until;

    c->work_until = UINT64_MAX;
    while (c->task_count > 0 || !list_empty(&c->jobs)) {
        if (!list_empty(&c->jobs)) go_on(c, LIST_FIRST(struct job, node, &c->jobs));
        for (unsigned i = 0; i < CORE_QUEUES; i++) {
            struct task *t = LIST_FIRST(struct task, node, &c->tasks[i]);
            if (t == NULL) continue;
            uint64_t mark = t->mark;
            enum status s = device_wait(c->queues[i], mark);
            run_passed(c, i, mark, s);
        }
    }
    c->work_until = until;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Would so much more be more than the cap, with what is cached and what only waits for the device? */
static bool is_crowded(const struct core *c, size_t size)
{
    uint64_t most = c->limits.memory_max, held = c->device->bytes_held + c->key_count * KEY_COST;

    return most > 0 && (held > most || size > most - held);
}

static void make_room(struct core *c)
{
    state_leavings_free(c);
    cache_clear(c, UINT64_MAX);
}

enum status core_mem_new(struct core *c, size_t size, struct mem_place place, struct dmem *out, struct error *e)
{
    if (size >= CACHE_FROM)
        for (size_t i = c->cache_count; i-- > 0;) {
            if (c->cache[i].mem.size != size || !mem_place_equal(c->cache[i].mem.place, place)) continue;
            *out = cache_take(c, i);
            return STATUS_OK;
        }
    if (is_crowded(c, size)) make_room(c);
    enum status s = device_mem_new_at(c->device, size > 0 ? size : 1, place, out, e);
    if (s == STATUS_OK || (c->cache_count == 0 && list_empty(&c->leavings))) return s;
    make_room(c); /* what lies here unused may be just what is missing */
    return device_mem_new_at(c->device, size > 0 ? size : 1, place, out, e);
}

uint64_t core_mem_cached(const struct core *c) { return c->cache_bytes + device_cached(c->device); }

enum status core_sum(struct core *c, const struct sum_list *l, struct error *e)
{
    enum status s = c->sums == NULL ? sums_new(c->device, 0, &c->sums, e) : STATUS_OK;

    if (s == STATUS_OK) s = sums_take(c->sums, l, e);
    if (s == STATUS_OK) c->counters.lists_summed++;
    return s;
}

struct room core_room_new(struct core *c, uint64_t count, bool whole, uint64_t size, uint64_t counted)
{
    account_add(c, (int64_t)counted);
    return (struct room){device_home_new(c->device, (size_t)count, whole, size), count, size, counted};
}

void core_room_move(struct core *c, struct room *r)
{
    device_home_keep(c->device, r->home, (size_t)r->count, -(int64_t)r->size);
    r->home = HOME_ON_CPU;
    device_home_keep(c->device, r->home, (size_t)r->count, (int64_t)r->size);
}

void core_room_free(struct core *c, struct room *r)
{
    device_home_keep(c->device, r->home, (size_t)r->count, -(int64_t)r->size);
    account_add(c, -(int64_t)r->counted);
    r->size = r->counted = 0;
}

bool core_may_move(const struct core *c, uint32_t home, enum status s, const struct error *e)
{
    return s != STATUS_OK && e->reason == REASON_NO_MEMORY && c->device->cpu != NULL && !(home & HOME_ON_CPU);
}

void core_mem_free(struct core *c, struct dmem *m)
{
    bool fits = m->size >= CACHE_FROM && c->cache_bytes + m->size <= c->staging_max / 4 &&
                c->cache_count < sizeof c->cache / sizeof c->cache[0] && !is_crowded(c, 0);

    if (!fits) {
        give_to_device(c, m);
        return;
    }
    c->cache[c->cache_count++] = (struct cached){*m, c->now_ms};
    c->cache_bytes += m->size;
    *m = (struct dmem){0};
}
